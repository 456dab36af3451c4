"""What kernels may be given, and what of that decides about their machine code."""

import numpy as np

from ...errors import message, wrong_type

_NUMBERS = frozenset({bool, int, float, np.bool_, np.int64, np.float32, np.float64})


def types_of(kernel, arguments):
    """Return what decides about the types that Numba knows the arguments by, in a fiftieth of its time.

    Tuples count by their classes: two cells of one name and with the same fields have other equations, and so other
    code.

    Parameters
    ----------
    kernel : function
        What an error names.
    arguments : tuple
        Numbers, arrays that are C-contiguous, aligned and writeable, and tuples of these.

    Raises
    ------
    TypeError
        If there is anything else among them: the machine code would take it for what it is not.
    """
    found, values = [], list(arguments)
    for value in values:  # which grow: the elements of a tuple come behind all others
        kind = type(value)
        if kind is np.ndarray:
            if not value.flags.carray:
                raise _wrong_array(kernel, value)
            found += kind, value.dtype, value.ndim
        elif kind in _NUMBERS:
            found.append(kind)
        elif isinstance(value, tuple):
            found += kind, len(value)
            values += value
        else:
            raise wrong_type(kernel.__name__, "arguments", "numbers, arrays and tuples of them", value)
    return tuple(found)


def _wrong_array(kernel, array):
    flags = array.flags
    got = f"strides {array.strides} in shape {array.shape}, aligned={flags.aligned}, writeable={flags.writeable}"
    return TypeError(message(kernel.__name__, "arrays", "be C-contiguous, aligned and writeable", got))
