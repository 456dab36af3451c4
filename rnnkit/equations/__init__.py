"""A cell's equations as functions of NumPy arrays, PyTorch tensors and JAX arrays."""
