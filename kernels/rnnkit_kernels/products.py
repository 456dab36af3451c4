"""The weights of a cell's products, and packing them for the time loop."""

from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numba.extending import overload

from .machine.arrays import part
from .machine.bound import values_of
from .machine.formats import FullPrecision, form_of, format_of, storage
from .machine.gemm import Packed, WeightMatrix, panel_lanes
from .machine.jit import OPTIONS, inner, kernel
from .machine.matrix import Matrix, Range, clear
from .machine.packing import pack_columns, padded, panel_size, panels_of, panels_part
from .machine.partition import partition
from .machine.sync import barrier, join, post_call
from .machine.tiles import ensure_in_place_tiles
from .operands import Sizes
from .phases import all_of, columns_of_slots

OF_UNITS, OF_OUTPUT, _OF_INPUT = (Sizes._fields.index(name) for name in ("hidden", "output", "input"))


class PackedProduct(NamedTuple):
    """One product of the forward pass; it writes contiguous columns of the gates.

    Column first + i is the product with row rows[i] of a matrix of `depth` columns that starts at `start` in the flat
    weights, plus element rows[i] of a bias that starts at `bias`. These are the columns of `gates` gates. Without a
    matrix ("skip" input) `depth` is 0, without a bias `bias` is -1. The weights are packed as `blocks` blocks of
    equally many rows: one block, or with several heads one for each head of each gate. The last product of a layer
    stands for its vectors, which are a bias of no gate.
    """

    first: int
    rows: np.ndarray
    start: int
    gates: int
    depth: int
    bias: int
    blocks: int
    heads: int


class HeadWeights(NamedTuple):
    """Weights of a product with several heads: from `start` on, `packed` has one block of `size` elements for each head
    of each gate; the rows of the matrix have the same order."""

    packed: np.ndarray  # of all products; a tuple of `formats` for quantized weights
    start: int
    size: int
    matrix: Matrix
    thread_id: int


class LayerWeights(NamedTuple):
    """Weights of a layer, by product, and the biases that the gates start from."""

    products: tuple  # a WeightMatrix for each product of the cell with one head
    heads: tuple  # HeadWeights for each of the others
    projection: Packed
    bias: np.ndarray  # of each column of the gates; then the vectors


def weight_starts_of(products):
    """Return (products, 3) int64: start, depth and bias of each product, which differ between layers."""
    return np.array([(p.start, p.depth, p.bias) for p in products], np.int64)


def offsets_of(products, columns, itemsize, start, precision=None, in_place=False):
    """Return where the panels of each product start in the packed buffer, then where the layer's summed biases,
    including its vectors, start and end. Weights that are read in place have no panels."""
    form, sizes = form_of(precision), []
    if in_place:
        ensure_in_place_tiles("columns", itemsize)
    for p in products:
        if in_place:
            sizes.append(0)
            continue
        words, rows = form.words(p.depth), p.rows.size // p.blocks
        gates = p.gates if p.blocks == 1 else 1
        scales = 2 * padded(rows, itemsize) + padded(p.depth, itemsize) if form.has_scales and gates else 0
        sizes.append(p.blocks * (panel_size(words, rows // max(gates, 1), gates, itemsize) + scales))
    sizes.append(padded(columns, itemsize))
    return np.array(list(accumulate(sizes, initial=start)), np.int64)


def depth_of(product):
    """Return the index into `Sizes` of the depth of a cell's product."""
    return {None: _OF_INPUT, "h_prev": OF_OUTPUT}.get(product.source, OF_UNITS)


def _weights_of_product(place, product):
    """Build the function that returns the weights of a product of the cell."""
    columns, depth = columns_of_slots(product.slots), depth_of(product)

    def find(cell, sizes, packed, offsets, products, weight_starts, w, thread_id):
        start, stop = offsets[place], offsets[place + 1]
        panels = packed_part(packed, start, stop, sizes[depth], sizes.hidden, columns(sizes.hidden), thread_id)
        return WeightMatrix(panels, Matrix(w, products[place].rows, weight_starts[place, 0], sizes[depth]))

    return find


def _weights_of_heads_of(place, product):
    """Build the function that returns the weights of a product of the cell with several heads."""
    blocks, heads = len(product.slots) * product.heads, product.heads

    def find(cell, sizes, packed, offsets, products, weight_starts, w, thread_id):
        matrix = Matrix(w, products[place].rows, weight_starts[place, 0], sizes.hidden // heads)
        size = (offsets[place + 1] - offsets[place]) // blocks
        return HeadWeights(packed, offsets[place], size, matrix, thread_id)

    return find


@inner
def weights_of_block(weights, block, column):
    """Return the weights of one gate and head; `column` is their first column of the gates."""
    matrix, start = weights.matrix, weights.start + block * weights.size
    units = matrix.stride
    panels = packed_part(weights.packed, start, start + weights.size, units, units, (column,), weights.thread_id)
    rows = part(matrix.rows, block * units, (block + 1) * units)
    return WeightMatrix(panels, Matrix(matrix.data, rows, matrix.start, units))


_weights_of_products = all_of(
    lambda declaration: [_weights_of_product(*one) for one in enumerate(declaration.products) if one[1].heads == 1]
)
_weights_of_heads = all_of(
    lambda declaration: [_weights_of_heads_of(*one) for one in enumerate(declaration.products) if one[1].heads > 1]
)


@inner
def vectors_of_head(array, columns, head, units):
    """Return the panels of a head's units within these columns of all units: those of a thread, which start at a panel
    of each head, or all."""
    lanes = panel_lanes(array)
    start, stop = max(columns.start - head * units, 0), min(columns.stop - head * units, units)
    return Range(start // lanes, (stop + lanes - 1) // lanes if stop > start else start // lanes)


@inner
def weights_of(cell, sizes, packed, offsets, products, weight_starts, w, thread_id):
    """Return the weights of the layer with these offsets in the packed buffer and these starts in the flat weights,
    with the thread's scratch."""
    start, stop = offsets[offsets.size - 4], offsets[offsets.size - 3]  # then come the vectors, which have no panels
    return LayerWeights(
        products=_weights_of_products(cell, (sizes, packed, offsets, products, weight_starts, w, thread_id)),
        heads=_weights_of_heads(cell, (sizes, packed, offsets, products, weight_starts, w, thread_id)),
        projection=packed_part(packed, start, stop, sizes.hidden, sizes.output, (0,), thread_id),
        bias=part(storage(packed), offsets[offsets.size - 2], offsets[offsets.size - 1]),
    )  # fmt: skip


def packed_part(packed, start, stop, depth, units, columns, thread_id):
    """Return the packed matrix at start:stop of a packed buffer."""


@overload(packed_part, jit_options=OPTIONS)
def _packed_part_of(packed, start, stop, depth, units, columns, thread_id):
    def full_precision(packed, start, stop, depth, units, columns, thread_id):
        return Packed(part(packed, start, stop), depth, units, columns)

    def quantized(packed, start, stop, depth, units, columns, thread_id):
        panels = panels_of(packed, start, stop, depth, len(columns) * units, thread_id)
        return Packed(panels, depth, units, columns)

    return full_precision if format_of(packed) is FullPrecision else quantized


@inner
def sum_biases(products, weight_starts, packed, offsets, w, team):
    """Sum the biases of one layer; each thread sums a part of the columns."""
    bias = part(storage(packed), offsets[offsets.size - 2], offsets[offsets.size - 1])
    own = partition(bias.size, team.thread_id, team.size)
    clear(part(bias, own.start, own.stop))
    for number in range(len(products)):
        p, start = products[number], weight_starts[number, 2]
        if start >= 0:
            for i in range(max(own.start - p.first, 0), min(own.stop - p.first, p.rows.size)):
                bias[p.first + i] += w[start + p.rows[i]]


@kernel
def pack_layer(bound, w, thread_id, size, sync):
    """Pack the weights of one layer and sum its biases."""
    post_call(sync, thread_id, size)
    (_, products, weight_starts, offsets), packed = values_of(bound)
    team = join(sync, thread_id, size)
    for number in range(len(products)):
        p, start = products[number], offsets[number]
        if offsets[number + 1] > start:
            size, count = (offsets[number + 1] - start) // p.blocks, p.rows.size // p.blocks
            gates = p.gates if p.blocks == 1 else 1
            for block in range(p.blocks):
                rows = part(p.rows, block * count, (block + 1) * count)
                panels = panels_part(packed, start + block * size, start + (block + 1) * size)
                matrix = Matrix(w, rows, weight_starts[number, 0], weight_starts[number, 1])
                pack_columns(panels, matrix, count // gates, gates, team)
    sum_biases(products, weight_starts, packed, offsets, w, team)
    barrier(team)
