"""A dense layer on rows, y = x W^T + b, and its gradients, computed by the engine's matrix product.

Every number is one chain of fused multiply-adds, k ascending: y starts from the bias, dx from 0, and dw from its old
value, to which the rows are added in order.
"""

from .cells.functions import value
from .machine.arrays import part
from .machine.gemm import Packed, WeightMatrix, depth_block_of, product_of_rows, product_with
from .machine.in_place import MAX_ROWS_IN_PLACE
from .machine.jit import inner, kernel
from .machine.matrix import Matrix, Range, clear, copy
from .machine.packing import pack_columns, vectors_of
from .machine.partition import next_block, num_claims, partition
from .machine.sync import barrier, join, post_call
from .weight_gradient import Term, add_weight_gradients, pack_sources, pack_terms

_ROW_GRAIN = 48  # rows of a work-stealing block: whole tiles of 6


@inner
def _pack(panels, bias, w, numbers, units, depth, team):
    if panels.size > 0:
        pack_columns(panels, Matrix(w, part(numbers, 0, units), 0, depth), units, 1, team)
    if team.thread_id == 0:
        copy(part(bias, 0, units), part(w, units * depth, units * depth + units))
    barrier(team)


@kernel
def forward(y, x, w, panels, bias, numbers, rows, units, depth, thread_id, size, sync):
    """y = x W^T + b. Without panels the weights are read in place."""
    post_call(sync, thread_id, size)
    team, one = join(sync, thread_id, size), (0,)
    _pack(panels, bias, w, numbers, units, depth, team)
    own, other = Matrix(y, part(numbers, 0, rows), 0, units), Matrix(x, part(numbers, 0, rows), 0, depth)
    weights = WeightMatrix(Packed(panels, depth, units, one), Matrix(w, part(numbers, 0, units), 0, depth))
    vectors = vectors_of(panels, units)
    if rows < MAX_ROWS_IN_PLACE * team.size:  # too few rows for every thread to read all weights: split units
        some = partition(vectors, team.thread_id, team.size)
        product_with(own, other, Range(0, rows), weights, some, bias, True, False)
    else:
        for claim in range(num_claims(rows, _ROW_GRAIN, team)):
            some = next_block(claim, rows, _ROW_GRAIN, team)
            if some.stop > some.start:
                product_with(own, other, some, weights, Range(0, vectors), bias, True, False)
    barrier(team)


@kernel
def backward(dx, dw, dy, x, w, panels, block, scratch, zeros, numbers, rows, units, depth, thread_id, size, sync):
    """dx = dy W; add dy^T x and the sum of dy to dw. Without panels weights and x are read in place.

    `block`: buffer for the panels of some rows of x; `zeros`: a row of zeros as long as one of dx, in whole panels.
    """
    post_call(sync, thread_id, size)
    team, one = join(sync, thread_id, size), (0,)
    all_rows, columns = part(numbers, 0, rows), part(numbers, 0, units)
    source, own = Matrix(x, all_rows, 0, depth), Matrix(dx, all_rows, 0, depth)
    gradient, weight = Matrix(dy, all_rows, 0, units), Matrix(w, columns, 0, depth)
    terms = (Term(0, weight, units * depth, source, Packed(panels, units, depth, one), block, 1, 1),)
    pack_terms(terms, team)
    if team.thread_id == 0:
        clear(zeros)
    barrier(team)
    for claim in range(num_claims(rows, _ROW_GRAIN, team)):
        some = next_block(claim, rows, _ROW_GRAIN, team)
        if some.stop > some.start:
            vectors = Range(0, vectors_of(scratch, depth))
            product_of_rows(own, gradient, some, terms[0].packed, weight, vectors, zeros, True, False)
    for start in range(0, rows, depth_block_of(scratch)):
        some = Range(start, min(start + depth_block_of(scratch), rows))
        pack_sources(terms, some, scratch, columns.size, team)
        barrier(team)
        add_weight_gradients(terms, dw, False, gradient, some, scratch, zeros, columns, team)
        barrier(team)


@kernel
def activate(values, activation):
    """Apply an activation to each number, in place."""
    for i in range(values.size):
        values[i] = value(activation, values[i])
