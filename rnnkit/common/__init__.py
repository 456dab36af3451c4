"""Shared internals: NumPy and CuPy arrays, numbers, lazy attributes, optional packages."""
