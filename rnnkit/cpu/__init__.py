"""One network on NumPy arrays: what of it is planned, what the kernels are given, and the calls of them."""
