"""A dense layer on rows, y = x W^T + b, and its gradients, on the engine's product.

Every number is one chain of fused multiply-adds, k ascending: y begins with the bias, dx with 0, and dw with what it
was, to which the rows are added in their order.
"""

from .machine.arrays import part
from .machine.bound import values_of
from .machine.gemm import Packed, WeightMatrix, depth_block_of, pack_columns, product_of_rows, product_with, vectors_of
from .machine.in_place import MOST_ROWS
from .machine.jit import inner, kernel
from .machine.matrix import Matrix, Range, copy
from .machine.partition import next_block, num_claims, partition
from .machine.sync import barrier, join, post_call
from .weight_gradient import Term, add_weight_gradients, pack_sources, pack_terms

_GRAIN = 48  # rows that a thread takes at a time: whole tiles of 6


@kernel
def pack(panels, bias, w, numbers, depth, units, rank, size, sync):
    """Pack the weights of a dense layer, which stand in front of its bias in w; `bias` has room for whole panels."""
    post_call(sync, rank, size)
    team = join(sync, rank, size)
    if panels.size > 0:
        pack_columns(panels, Matrix(w, part(numbers, 0, units), 0, depth), units, 1, team)
    if team.rank == 0:
        copy(part(bias, 0, units), part(w, units * depth, units * depth + units))
    barrier(team)


@kernel
def forward(bound, w, rank, size, sync):
    """y = x W^T + b. Without panels the weights are read where they are."""
    post_call(sync, rank, size)
    y, x, panels, bias, numbers = values_of(bound)
    team = join(sync, rank, size)
    depth, units, one = x.stride, y.stride, (0,)
    weights = WeightMatrix(Packed(panels, depth, units, one), Matrix(w, part(numbers, 0, units), 0, depth))
    rows, vectors = y.rows.size, vectors_of(panels, units)
    if rows < MOST_ROWS * team.size:  # too few rows for every thread to read all weights
        product_with(y, x, Range(0, rows), weights, partition(vectors, team.rank, team.size), bias, True, False)
    else:
        for claim in range(num_claims(rows, _GRAIN, team)):
            own = next_block(claim, rows, _GRAIN, team)
            if own.stop > own.start:
                product_with(y, x, own, weights, Range(0, vectors), bias, True, False)
    barrier(team)


@inner
def _term(x, w, panels, block, numbers, units):
    """The product of forward, for its gradient."""
    depth, one = x.stride, (0,)
    weight = Matrix(w, part(numbers, 0, units), 0, depth)
    return Term(0, weight, units * depth, x, Packed(panels, units, depth, one), block, 1, 1)


@kernel
def backward(dx, dw, dy, x, w, panels, block, scratch, zeros, numbers, rank, size, sync):
    """dx = dy W; dy^T x and the sum of dy are added to dw. Without panels weights and x are read where they are."""
    post_call(sync, rank, size)
    team = join(sync, rank, size)
    rows, units = dy.rows.size, dy.stride
    terms = (_term(x, w, panels, block, numbers, units),)
    pack_terms(terms, team)
    barrier(team)
    all_of_x, columns = Range(0, vectors_of(scratch, x.stride)), part(numbers, 0, units)
    for claim in range(num_claims(rows, _GRAIN, team)):
        own = next_block(claim, rows, _GRAIN, team)
        if own.stop > own.start:
            product_of_rows(dx, dy, own, terms[0].packed, terms[0].weight, all_of_x, zeros, True, False)
    for start in range(0, rows, depth_block_of(scratch)):
        some = Range(start, min(start + depth_block_of(scratch), rows))
        pack_sources(terms, some, team)
        barrier(team)
        add_weight_gradients(terms, dw, False, dy, some, scratch, zeros, columns, team)
        barrier(team)


@kernel
def add_rows(sums, index, rows, rank, size, sync):
    """sums[index[i]] += rows[i] for every i, in their order: what a lookup in a table is backward."""
    post_call(sync, rank, size)
    team = join(sync, rank, size)
    columns = partition(rows.stride, team.rank, team.size)
    for i in range(index.size):
        target, source = sums.start + index[i] * sums.stride, rows.start + rows.rows[i] * rows.stride
        own = part(sums.data, target + columns.start, target + columns.stop)
        addend = part(rows.data, source + columns.start, source + columns.stop)
        for j in range(own.size):
            own[j] += addend[j]
    barrier(team)
