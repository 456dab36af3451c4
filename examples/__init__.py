"""Programs of one page.

A package with this file, as other distributions install one of this name.
"""
