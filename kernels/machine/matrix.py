"""Rows of a flat array that are listed by number: how every kernel is told what to read and what to write."""

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from .jit import inner
from .registers import data_pointer


class Matrix(NamedTuple):
    """Rows of a flat array: row number r stands at data[start + rows[r]*stride:]."""

    data: np.ndarray
    rows: np.ndarray
    start: int
    stride: int


@inner
def offset(matrix, row):
    """Where the row at position `row` of the row list starts."""
    return matrix.start + matrix.rows[row] * matrix.stride


def _view(context, builder, array_type, array, result_type, start, size):
    """The `size` elements of an array from `start` on, as a value of the one-dimensional result_type."""
    result = context.make_array(result_type)(context, builder)
    itemsize = context.make_array(array_type)(context, builder, array).itemsize
    context.populate_array(
        result, data=data_pointer(context, builder, array_type, array, start), shape=[size], strides=[itemsize],
        itemsize=itemsize, meminfo=None, parent=None
    )
    return result._getvalue()


@intrinsic
def flat(typingctx, array):
    """A C-contiguous array in one dimension; array.reshape takes 60 ns to find out that it need not copy."""
    result = types.Array(array.dtype, 1, "C")

    def generate(context, builder, signature, arguments):
        (array,) = arguments
        size = context.make_array(signature.args[0])(context, builder, array).nitems
        return _view(context, builder, signature.args[0], array, result, size.type(0), size)

    return result(array), generate


@intrinsic
def part(typingctx, array, first, last):
    """array[first:last] for 0 <= first <= last <= array.size, without the code for all other bounds.

    A loop over range(part.size) is vectorised; one with an offset in the index is not, for Python's negative indices.
    """

    def generate(context, builder, signature, arguments):
        array, first, last = arguments
        return _view(context, builder, signature.args[0], array, signature.args[0], first, builder.sub(last, first))

    return array(array, types.int64, types.int64), generate
