"""Transposition in registers, a square of one vector's lanes at a time."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .arrays import data_pointer
from .jit import inner
from .matrix import matrix_pointers, offset
from .registers import I32, I64, VECTOR_BYTES, panel_lanes


def emit_transpose(builder, vectors):
    """The transpose of n vectors of n lanes: halves of ever closer pairs of vectors change places."""
    count = len(vectors)
    distance = count // 2
    while distance:
        low = [lane if not lane & distance else lane - distance + count for lane in range(count)]
        high = [lane + distance if not lane & distance else lane + count for lane in range(count)]
        masks = [ir.Constant(ir.VectorType(I32, count), [I32(i) for i in m]) for m in (low, high)]
        for i in range(count):
            if not i & distance:
                pair = vectors[i], vectors[i + distance]
                vectors[i], vectors[i + distance] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        distance //= 2
    return vectors


@intrinsic
def _transpose_square(typingctx, target, at, target_stride, a, row, column):
    """target[at + j*target_stride + i] = A[row + i, column + j], i and j below the vector's lanes."""

    def generate(context, builder, signature, arguments):
        target, at, target_stride, a, row, column = arguments
        bits = signature.args[0].dtype.bitwidth
        lanes = VECTOR_BYTES * 8 // bits
        vector = ir.VectorType(context.get_value_type(signature.args[0].dtype), lanes).as_pointer()
        target = data_pointer(context, builder, signature.args[0], target, at)
        source, rows, stride = matrix_pointers(context, builder, signature.args[3], a, row, column)
        loaded = []
        for i in range(lanes):
            number = builder.load(builder.gep(rows, [I64(i)]))
            pointer = builder.gep(source, [builder.mul(number, stride)])
            loaded.append(builder.load(builder.bitcast(pointer, vector), align=bits // 8))
        for j, values in enumerate(emit_transpose(builder, loaded)):
            pointer = builder.gep(target, [builder.mul(target_stride, I64(j))])
            builder.store(values, builder.bitcast(pointer, vector), align=bits // 8)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(target, i64, i64, a, i64, i64), generate


@inner
def transpose(target, at, target_stride, a, rows, columns):
    """target[at + (column - columns.start)*target_stride + row - rows.start] = A[row, column], square by square."""
    lanes = panel_lanes(target)
    for row in range(rows.start, rows.stop, lanes):
        for column in range(columns.start, columns.stop, lanes):
            to = at + (column - columns.start) * target_stride + row - rows.start
            if row + lanes <= rows.stop and column + lanes <= columns.stop:
                _transpose_square(target, to, target_stride, a, row, column)
            else:
                for i in range(min(lanes, rows.stop - row)):
                    source = offset(a, row + i) + column
                    for j in range(min(lanes, columns.stop - column)):
                        target[to + j * target_stride + i] = a.data[source + j]
