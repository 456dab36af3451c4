"""Views of rows of a flat array, listed by row number: kernels receive all operands in this form."""

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from .arrays import FlatArray, data_pointer, view
from .jit import inner


class Matrix(NamedTuple):
    """Rows of a flat array: row number r starts at data[start + rows[r]*stride]."""

    data: np.ndarray
    rows: np.ndarray
    start: int
    stride: int


class Range(NamedTuple):
    """The numbers of range(start, stop)."""

    start: int
    stop: int


@inner
def offset(matrix, row):
    """Return where the row at position `row` of the row list starts."""
    return matrix.start + matrix.rows[row] * matrix.stride


@inner
def shifted(matrix, columns):
    """Return the rows from another column on."""
    return Matrix(matrix.data, matrix.rows, matrix.start + columns, matrix.stride)


class CallMatrix(NamedTuple):
    """A matrix whose data each call may supply: it has none of its own if `lacks_data`."""

    matrix: Matrix
    lacks_data: bool


@inner
def or_call_data(rows, data):
    """Return the matrix of a `CallMatrix`, with the call's data if it lacks data."""
    own = rows.matrix
    return Matrix(data if rows.lacks_data else own.data, own.rows, own.start, own.stride)


@intrinsic(prefer_literal=True)
def with_field(typingctx, bundle, field, value):
    """Return a named tuple with another value in one field; `field` must be a literal."""
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
    """Return where row number 0 has this column, the row numbers from position `row` on, and the stride, in LLVM IR."""
    data, rows, start, stride = (builder.extract_value(matrix, field) for field in range(4))
    first = data_pointer(context, builder, kind.types[0], data, builder.add(start, column))
    return first, data_pointer(context, builder, kind.types[1], rows, row), stride


def row_pointer(context, builder, kind, matrix, row, column):
    """Return a pointer to a column of the row at position `row` of the row list, in LLVM IR."""
    first, rows, stride = matrix_pointers(context, builder, kind, matrix, row, column)
    return builder.gep(first, [builder.mul(builder.load(rows), stride)])


@intrinsic
def row_part(typingctx, matrix, row, columns):
    """Return a range of columns of the row at position `row` of the row list."""
    result = FlatArray(matrix.types[0].dtype)

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
