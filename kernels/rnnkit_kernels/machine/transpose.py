"""Transposition in registers, a square of one vector's lanes at a time."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .arrays import data_pointer
from .jit import inner
from .matrix import matrix_pointers, offset
from .registers import I32, I64, VECTOR_BYTES, panel_lanes

_BLOCK_BYTES = 16
"""Bytes of a register within which shuffles are cheapest, four per cycle on Zen 5."""


def emit_transpose(builder, vectors):
    """Transpose n vectors of n lanes: first each small square within the blocks of the registers, by interleaving runs
    of one, two, ... numbers, then the blocks.

    Each step is one instruction on x86, without a mask from memory.
    """
    count = len(vectors)
    size = min(count, _BLOCK_BYTES // (VECTOR_BYTES // count))
    squares = [_emit_small(builder, vectors[first : first + size], size) for first in range(0, count, size)]
    columns = [_emit_blocks(builder, [square[i] for square in squares], size) for i in range(size)]
    return [columns[k % size][k // size] for k in range(count)]


def _emit_small(builder, vectors, size):
    """Return vectors: vector k has number k of each block of each of the `size` vectors."""
    run, half = 1, size // 2
    while run < size:
        halves = (range(0, half, run), range(half, size, run))
        firsts = [i for i in range(size) if not i & run]
        vectors = [
            _emit_merged(builder, vectors[i], vectors[i + run], size, [(at, run) for at in places])
            for i in firsts for places in halves
        ]  # fmt: skip
        run *= 2
    return vectors


def _emit_merged(builder, a, b, size, runs):
    """Take, from each block of `size` numbers, these runs (start, length) of a and of b alternately."""
    count, mask = a.type.count, []
    for block in range(0, count, size):
        for start, length in runs:
            mask += [first + block + start + i for first in (0, count) for i in range(length)]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, count), list(map(I32, mask))))


def _emit_blocks(builder, vectors, size):
    """Return vectors: vector k has block k of each vector, in order."""
    if len(vectors) == 1:
        return vectors
    count, result = vectors[0].type.count, [None] * len(vectors)
    for odd in range(2):
        mask = [i for i in range(2 * count) if i // size % 2 == odd]
        mask = ir.Constant(ir.VectorType(I32, count), list(map(I32, mask)))
        halves = [builder.shuffle_vector(a, b, mask) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        result[odd::2] = _emit_blocks(builder, halves, size)
    return result


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
