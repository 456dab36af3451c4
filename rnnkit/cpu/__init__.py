"""The CPU engine, one network on NumPy arrays: planning, arguments of the kernels, and calls of the kernels."""
