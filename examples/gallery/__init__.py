"""Cells of papers, each a page of equations, to copy from. `docs/gallery.md` lists them."""
