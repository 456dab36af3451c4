"""Transposition in registers, a square of one vector's lanes at a time."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .jit import inner
from .matrix import offset
from .registers import VECTOR_BYTES, data_pointer, panel_lanes

_I64 = ir.IntType(64)


def _emit_transpose(builder, vectors):
    """The transpose of n vectors of n lanes: halves of ever closer pairs of vectors change places."""
    count = len(vectors)
    distance = count // 2
    while distance:
        low = [lane if not lane & distance else lane - distance + count for lane in range(count)]
        high = [lane + distance if not lane & distance else lane + count for lane in range(count)]
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), count), [ir.IntType(32)(i) for i in m]) for m in (low, high)]
        for i in range(count):
            if not i & distance:
                pair = vectors[i], vectors[i + distance]
                vectors[i], vectors[i + distance] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        distance //= 2
    return vectors


@intrinsic
def _transpose_square(typingctx, target, at, target_stride, source, start, stride, rows, row):
    """target[at + j*target_stride + i] = source[start + rows[row + i]*stride + j], i and j below the vector's lanes."""

    def generate(context, builder, signature, arguments):
        target, at, target_stride, source, start, stride, rows, row = arguments
        bits = signature.args[0].dtype.bitwidth
        lanes = VECTOR_BYTES * 8 // bits
        vector = ir.VectorType(context.get_value_type(signature.args[0].dtype), lanes).as_pointer()
        source = data_pointer(context, builder, signature.args[3], source, start)
        rows = data_pointer(context, builder, signature.args[6], rows, row)
        target = data_pointer(context, builder, signature.args[0], target, at)
        loaded = []
        for i in range(lanes):
            number = builder.load(builder.gep(rows, [_I64(i)]))
            pointer = builder.gep(source, [builder.mul(number, stride)])
            loaded.append(builder.load(builder.bitcast(pointer, vector), align=bits // 8))
        for j, column in enumerate(_emit_transpose(builder, loaded)):
            pointer = builder.gep(target, [builder.mul(target_stride, _I64(j))])
            builder.store(column, builder.bitcast(pointer, vector), align=bits // 8)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(target, i64, i64, source, i64, i64, rows, i64), generate


@inner
def transpose(target, at, target_stride, a, first_row, last_row, first_column, last_column):
    """target[at + (column - first_column)*target_stride + row - first_row] = A[row, column], square by square."""
    lanes = panel_lanes(target)
    for row in range(first_row, last_row, lanes):
        for column in range(first_column, last_column, lanes):
            to = at + (column - first_column) * target_stride + row - first_row
            if row + lanes <= last_row and column + lanes <= last_column:
                _transpose_square(target, to, target_stride, a.data, a.start + column, a.stride, a.rows, row)
            else:
                for i in range(min(lanes, last_row - row)):
                    source = offset(a, row + i) + column
                    for j in range(min(lanes, last_column - column)):
                        target[to + j * target_stride + i] = a.data[source + j]
