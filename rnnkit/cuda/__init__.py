"""One network on CuPy arrays, run by cuDNN."""
