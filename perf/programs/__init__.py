"""Programs of other packages, as they are and accelerated."""
