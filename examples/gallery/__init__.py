"""Cells of papers, each a page of equations, to copy from.
`docs/reference/cells-of-papers.md` lists them."""
