"""The gradients of the weights: products of the gates' gradients and what the weights multiplied, over many rows."""

from itertools import accumulate
from typing import NamedTuple

import numpy as np

from .machine.gemm import depth_block, depth_block_of, pack_rows, panel_size, product, vectors_of
from .machine.jit import inner
from .machine.matrix import Matrix, offset, part
from .machine.partition import claim, turns
from .machine.registers import plain
from .machine.transpose import transpose

# Columns that a member transposes at once: 400 KB a block, in L2 beside the panels of a wide tile; whole tiles of 6
PIECE = 96
PADDING = 16  # elements, a cache line of float32: a power of two would put a square's lines into one cache set


class Term(NamedTuple):
    """One product of the forward pass, backward: its weights belong to neighbouring columns of the gates' gradients.

    Column first + i belongs to row weight.rows[i] of a weight matrix, and to that element of its bias. An array is
    empty where there is no such product or matrix.
    """

    first: int
    weight: Matrix
    bias: int  # where the bias starts, -1 without one
    source: Matrix  # what the weights multiplied
    packed: np.ndarray  # the rows of `weight` as panels
    block: np.ndarray  # room for a block of rows of `source` as panels


class Terms(NamedTuple):
    """The terms of a layer, in the order of `products.Panels`."""

    input: Term
    recurrent: Term
    second: Term
    projection: Term


ROOM, END = 8, 9
"""Where, in the places of a layer, those of the room stand; in front are those of the panels."""


def room(columns, members, itemsize):
    """Elements that `add_weight_gradients` works in."""
    return columns + members * PIECE * (depth_block(itemsize) + PADDING)


def places_of(products, columns, members, itemsize):
    """Where the panels of a layer's weights, of its sources, and the room of `add_weight_gradients` start and end."""
    block = depth_block(itemsize)
    sizes = [panel_size(p.rows.size, p.depth, 1, itemsize) for p in products]
    sizes += [panel_size(block, p.depth, 1, itemsize) if p.rows.size else 0 for p in products]
    sizes += [room(columns, members, itemsize)]
    return np.array(list(accumulate(sizes, initial=0)), np.int64)


@inner
def _term(product, source, w, work, places):
    weight = Matrix(w, product.rows, product.start, product.depth)
    packed, block = part(work, places[0], places[1]), part(work, places[4], places[5])
    return Term(product.first, weight, product.bias, source, packed, block)


@inner
def terms_of(products, sources, w, work, places):
    """What the products of the forward pass, which multiplied `sources`, are backward."""
    return Terms(
        _term(products[0], sources[0], w, work, places), _term(products[1], sources[1], w, work, places[1:]),
        _term(products[2], sources[2], w, work, places[2:]), _term(products[3], sources[3], w, work, places[3:])
    )


@inner
def pack_weights(terms, member, members):
    """Pack all weights for the products that take the gradient back through them."""
    for term in terms:
        if term.packed.size > 0:
            pack_rows(term.packed, term.weight, plain(0), term.weight.rows.size, term.weight.stride, member, members)


@inner
def pack_sources(terms, first_row, last_row, member, members):
    """Pack a block of rows of what each term multiplied."""
    for term in terms:
        if term.block.size > 0:
            pack_rows(term.block, term.source, first_row, last_row, term.weight.stride, member, members)


@inner
def _sum_rows(sums, dgates, first_row, last_row, first, last):
    """sums[columns] = the sum over the rows, in their order."""
    total = part(sums, first, last)
    for j in range(last - first):
        total[j] = 0
    for row in range(first_row, last_row):
        at = offset(dgates, row)
        values = part(dgates.data, at + first, at + last)
        for j in range(last - first):
            total[j] += values[j]


@inner
def add_weight_gradients(terms, dw, dgates, first_row, last_row, work, columns, member, members, sync):
    """Add to dw what the rows, whose sources are packed, contribute; every column of `dgates` is one member's.

    `columns` are the numbers of all columns; `work` has room for their sums, and for a piece of every member.
    """
    stride = depth_block_of(work) + PADDING
    mine = columns.size + member * PIECE * stride
    for turn in range(turns(columns.size, PIECE, members)):
        begin, end = claim(turn, columns.size, PIECE, member, members, sync)
        transpose(work, mine, stride, dgates, first_row, last_row, begin, end)
        _sum_rows(work, dgates, first_row, last_row, begin, end)
        for term in terms:
            low = max(begin - term.first, 0)
            high = min(end - term.first, term.weight.rows.size)
            if low < high and term.block.size > 0:
                product(
                    Matrix(dw, term.weight.rows, term.weight.start, term.weight.stride),
                    Matrix(work, columns, mine + (term.first - begin) * stride, stride), low, high,
                    last_row - first_row, term.block, plain(0), vectors_of(work, term.weight.stride),
                    term.weight.stride, (0,), work, plain(False)
                )
            if term.bias >= 0:
                for i in range(low, high):
                    dw[term.bias + term.weight.rows[i]] += work[term.first + i]
