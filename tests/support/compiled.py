"""Kernels that tests call from Python."""

import numba

from rnnkit_kernels.machine import jit


def for_python(inner):
    """A function that only kernels call, compiled so that a test can call it."""
    return numba.njit(**jit.OPTIONS | {"no_cpython_wrapper": False})(inner.py_func)
