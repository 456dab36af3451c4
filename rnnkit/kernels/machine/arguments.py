"""What kernels may be given, and what of that decides about their machine code."""

import numpy as np

from .bound import Bound
from .compiler import FINGERPRINT

_PLAIN = frozenset({type(None), bool, int, float, np.bool_, np.int64, np.float32, np.float64})
_INNER, _BOUND = b"", 0j  # in the place of a tuple in another one, and of bound arguments; no argument is such


def types_of(kernel, arguments):
    """Return what decides about the types of a kernel's arguments, in a thirtieth of the time that `typeof` takes.

    Arguments are numbers, None, arrays and tuples of them, or `Bound`, else it is a TypeError. Tuples count by their
    class: two cells of one name and with the same fields may have other equations. Alignment and byte order are not
    looked at.
    """
    classes, plain, tuples = [], [], [arguments]
    for one in tuples:  # which grow
        classes.append(type(one))
        classes.append(len(one))
        for value in one:
            if type(value) in _PLAIN or isinstance(value, np.ndarray):
                plain.append(value)
            elif isinstance(value, tuple):
                plain.append(_INNER)
                tuples.append(value)
            elif type(value) is Bound:
                plain.append(_BOUND)
                tuples.append(value.arguments)
            else:
                expected, got = "numbers, None, arrays and tuples of them", type(value).__name__
                raise TypeError(f"{kernel.__name__}: arguments must be {expected}, got {got}")
    return *classes, FINGERPRINT(tuple(plain))


def check_arrays(kernel, arguments):
    """Raise a TypeError unless all arrays are such as every kernel takes: others would be other types to Numba."""
    for value in arguments:
        if isinstance(value, (tuple, Bound)):
            check_arrays(kernel, value.arguments if isinstance(value, Bound) else value)
        elif isinstance(value, np.ndarray) and not (value.flags.c_contiguous and value.flags.writeable):
            got = f"strides {value.strides} of shape {value.shape}, writeable={value.flags.writeable}"
            raise TypeError(f"{kernel.__name__}: arrays must be C-contiguous and writeable, got {got}")
