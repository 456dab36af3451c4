"""Rows of a flat array that are listed by number: how every kernel is told what to read and what to write."""

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from .jit import kernel
from .simd import data_pointer


class Matrix(NamedTuple):
    """Rows of a flat array: row number r stands at data[start + rows[r]*stride:]."""

    data: np.ndarray
    rows: np.ndarray
    start: int
    stride: int


@kernel
def offset(matrix, row):
    """Where the row at position `row` of the row list starts."""
    return matrix.start + matrix.rows[row] * matrix.stride


@intrinsic
def part(typingctx, array, first, last):
    """array[first:last] for 0 <= first <= last <= array.size, without the code for all other bounds.

    A loop over range(part.size) is vectorised; one with an offset in the index is not, for Python's negative indices.
    """

    def generate(context, builder, signature, arguments):
        array, first, last = arguments
        kind = signature.args[0]
        whole = context.make_array(kind)(context, builder, array)
        result = context.make_array(signature.return_type)(context, builder)
        size = builder.sub(last, first)
        context.populate_array(
            result, data=data_pointer(context, builder, kind, array, first), shape=[size], strides=[whole.itemsize],
            itemsize=whole.itemsize, meminfo=None, parent=None
        )
        return result._getvalue()

    return array(array, types.int64, types.int64), generate
