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


class Range(NamedTuple):
    """The numbers from `start` on, below `stop`."""

    start: int
    stop: int


@inner
def offset(matrix, row):
    """Where the row at position `row` of the row list starts."""
    return matrix.start + matrix.rows[row] * matrix.stride


@inner
def shifted(matrix, columns):
    """The rows from another column on."""
    return Matrix(matrix.data, matrix.rows, matrix.start + columns, matrix.stride)


class CallMatrix(NamedTuple):
    """Rows of what is laid out, or of an array that each call gives (`of_call`): the matrix then has no data."""

    matrix: Matrix
    of_call: bool


@inner
def or_call_data(rows, data):
    """The matrix of a `CallMatrix`, in a call that gives this array."""
    own = rows.matrix
    return Matrix(data if rows.of_call else own.data, own.rows, own.start, own.stride)


@intrinsic(prefer_literal=True)
def with_field(typingctx, bundle, field, value):
    """A named tuple with another value in the field of this name, which is written out where this is called."""
    if not isinstance(field, types.StringLiteral):
        return None
    number = bundle.fields.index(field.literal_value)
    found = [value if i == number else kind for i, kind in enumerate(bundle.types)]

    def generate(context, builder, signature, arguments):
        values = [builder.extract_value(arguments[0], i) for i in range(len(found))]
        values[number] = arguments[2]
        return context.make_tuple(builder, signature.return_type, values)

    return types.BaseTuple.from_types(found, bundle.instance_class)(bundle, field, value), generate


def matrix_pointers(context, builder, kind, matrix, row, column):
    """Where row number 0 begins at this column, the row numbers from position `row` on, and the stride, in LLVM IR."""
    data, rows, start, stride = (builder.extract_value(matrix, field) for field in range(4))
    first = data_pointer(context, builder, kind.types[0], data, builder.add(start, column))
    return first, data_pointer(context, builder, kind.types[1], rows, row), stride


def view(context, builder, kind, first, size):
    """The `size` elements from a pointer on, as a value of a one-dimensional array type, in LLVM IR."""
    result = context.make_array(kind)(context, builder)
    itemsize = size.type(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    context.populate_array(
        result, data=first, shape=[size], strides=[itemsize], itemsize=itemsize, meminfo=None, parent=None
    )
    return result._getvalue()


@intrinsic
def flat(typingctx, array):
    """A C-contiguous array in one dimension; array.reshape takes 60 ns to find out that it need not copy."""
    result = types.Array(array.dtype, 1, "C")

    def generate(context, builder, signature, arguments):
        found = context.make_array(signature.args[0])(context, builder, *arguments)
        return view(context, builder, result, found.data, found.nitems)

    return result(array), generate


@intrinsic
def part(typingctx, array, start, stop):
    """array[start:stop] for 0 <= start <= stop <= array.size, without the code for all other bounds.

    A loop over range(part.size) is vectorised; one with an offset in the index is not, for Python's negative indices.
    """

    def generate(context, builder, signature, arguments):
        array, start, stop = arguments
        first = data_pointer(context, builder, signature.args[0], array, start)
        return view(context, builder, signature.args[0], first, builder.sub(stop, start))

    return array(array, types.int64, types.int64), generate


def row_pointer(context, builder, kind, matrix, row, column):
    """Where a column of the row at position `row` of the row list is, in LLVM IR."""
    first, rows, stride = matrix_pointers(context, builder, kind, matrix, row, column)
    return builder.gep(first, [builder.mul(builder.load(rows), stride)])


@intrinsic
def row_part(typingctx, matrix, row, columns):
    """A range of columns of the row at position `row` of the row list."""
    result = matrix.types[0]

    def generate(context, builder, signature, arguments):
        matrix, row, columns = arguments
        start, stop = (builder.extract_value(columns, field) for field in range(2))
        first = row_pointer(context, builder, signature.args[0], matrix, row, start)
        return view(context, builder, result, first, builder.sub(stop, start))

    return result(matrix, types.int64, columns), generate


@inner
def clear(values):
    """values = 0, for a part of a row."""
    for j in range(values.size):
        values[j] = 0


@inner
def copy(target, source):
    """target = source, for parts of rows."""
    for j in range(target.size):
        target[j] = source[j]


@inner
def add(target, addend):
    """target += addend, for parts of rows."""
    for j in range(target.size):
        target[j] += addend[j]
