"""Programs of one page. A package with this file, as other distributions install a package of this name."""
