"""Deterministic means over the units of a row: the order of additions is the same for any threads and any machine.

Units come in blocks. The thread that has the units of a block sums its terms, first in lanes, then the lanes by
halving. When all threads are done, the reader of the mean adds up the blocks in order.
"""

from contextlib import contextmanager

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .cells.declaration import MEAN_BLOCK
from .cells.declaration import mean_blocks as mean_blocks
from .machine.registers import I32, I64, VECTOR_BYTES

_LANES = 16
_TERMS = 256  # size of the stack buffer of a mean


def terms_on_stack(context, builder, real, count):
    """Allocate arrays on the stack for the terms of `count` means."""
    kind = ir.ArrayType(context.get_value_type(real), _TERMS)
    with builder.goto_entry_block():
        arrays = [builder.alloca(kind) for _ in range(count)]
    for array in arrays:
        array.align = VECTOR_BYTES
    return [builder.bitcast(array, kind.element.as_pointer()) for array in arrays]


def mean_blocks_of(builder, units):
    """Return the number of blocks of these units."""
    return builder.sdiv(builder.add(units, I64(MEAN_BLOCK - 1)), I64(MEAN_BLOCK))


def mean_of(builder, sums, units):
    """Return the mean of the units, from the sums of their blocks."""
    total = cgutils.alloca_once(builder, sums.type.pointee)
    builder.store(sums.type.pointee(0.0), total)
    with cgutils.for_range(builder, mean_blocks_of(builder, units), intp=I64) as loop:
        builder.store(builder.fadd(builder.load(total), builder.load(builder.gep(sums, [loop.index]))), total)
    return builder.fdiv(builder.load(total), builder.sitofp(units, sums.type.pointee))


@contextmanager
def parts_on_stack(builder, count):
    """Loop over parts of the units that fit the stack buffer; yields the start and the size of each."""
    with cgutils.for_range_slice(builder, I64(0), count, I64(_TERMS), intp=I64) as (start, _):
        left, most = builder.sub(count, start), I64(_TERMS)
        yield start, builder.select(builder.icmp_signed("<", left, most), left, most)


def sum_mean_blocks(builder, terms, count, target):
    """Write the sum of each block of `count` terms."""
    real, padded = terms.type.pointee, builder.mul(mean_blocks_of(builder, count), I64(MEAN_BLOCK))
    with cgutils.for_range_slice(builder, count, padded, I64(1), intp=I64) as (index, _):
        builder.store(real(0.0), builder.gep(terms, [index]))
    with cgutils.for_range(builder, mean_blocks_of(builder, count), intp=I64) as loop:
        first = builder.gep(terms, [builder.mul(loop.index, I64(MEAN_BLOCK))])
        pointer = ir.VectorType(real, _LANES).as_pointer()
        lanes = None
        for start in range(0, MEAN_BLOCK, _LANES):
            own = builder.load(builder.bitcast(builder.gep(first, [I64(start)]), pointer), align=VECTOR_BYTES)
            lanes = own if lanes is None else builder.fadd(lanes, own)
        size = _LANES
        while size > 1:
            size //= 2
            halves = [ir.Constant(ir.VectorType(I32, size), list(range(at, at + size))) for at in (0, size)]
            lanes = builder.fadd(*(builder.shuffle_vector(lanes, lanes, half) for half in halves))
        builder.store(builder.extract_element(lanes, I32(0)), builder.gep(target, [loop.index]))


@intrinsic
def vectors_of_mean_block(typingctx, array):
    """Return the vectors of a block in the array's dtype, at least 1."""
    count = max(MEAN_BLOCK * array.dtype.bitwidth // 8 // VECTOR_BYTES, 1)
    return types.int64(array), lambda context, builder, signature, arguments: I64(count)
