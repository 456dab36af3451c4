"""Which weights the products of a cell use, and packing them for the time loop."""

from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numba.extending import overload

from .machine.arrays import part
from .machine.formats import FORMS, Float, form_of, panels_of, storage
from .machine.gemm import Packed, WeightMatrix, pack_columns, padded, panel_lanes, panel_size
from .machine.jit import OPTIONS, inner, kernel
from .machine.matrix import Matrix, Range, clear
from .machine.partition import partition
from .machine.sync import barrier, join, post_call
from .operands import Sizes
from .phases import Numbered, all_of, columns_of_slots

OF_UNITS, OF_OUTPUT, _OF_INPUT = (Sizes._fields.index(name) for name in ("hidden", "output", "input"))


class Product(NamedTuple):
    """One product of the forward pass; it writes neighbouring columns of the gates.

    Column first + i is the product with row rows[i] of a matrix of `depth` columns that starts at `start` in the flat
    weights; the bias, element rows[i] of a vector that starts at `bias`, is added to it. They are the columns of
    `gates` gates. Without a matrix ("skip" input) `depth` is 0, without a bias `bias` is -1. The last of a layer's is
    that of its vectors, which are a bias of no gate.
    """

    first: int
    rows: np.ndarray
    start: int
    gates: int
    depth: int
    bias: int


class Weights(NamedTuple):
    """A layer's weights, by the product that they are for, and what the gates start from."""

    products: tuple  # of a WeightMatrix for each of the cell's products, but for those of heads
    heads: tuple  # of one for each of these
    projection: Packed
    bias: np.ndarray  # of each column of the gates; then the vectors


def places_of(products):
    """(products, 3) int64: of each product what it has alone in a layer, its start, depth and bias."""
    return np.array([(p.start, p.depth, p.bias) for p in products], np.int64)


def offsets_of(products, columns, itemsize, start, weights=None, in_place=False):
    """Where the panels of each product start in the packed buffer; last where the summed biases of the layer's columns,
    behind which its vectors stand, start and end. Of weights that are read where they are there are no panels."""
    form, sizes = FORMS[weights], []
    for p in products:
        if in_place:
            sizes.append(0)
            continue
        words = -(-p.depth // form.per_word)
        scales = 2 * padded(p.rows.size, itemsize) if form.has_scales and p.gates else 0
        sizes.append(panel_size(words, p.rows.size // max(p.gates, 1), p.gates, itemsize) + scales)
    sizes.append(padded(columns, itemsize))
    return np.array(list(accumulate(sizes, initial=start)), np.int64)


def depth_of(product):
    """Which of `Sizes` is that of a row of what a cell's product multiplies."""
    return {"x": _OF_INPUT, "h_prev": OF_OUTPUT}.get(product.source, OF_UNITS)


def _weights_of_product(place, product):
    """The function, to be compiled, that gives the weights of a product of the cell."""
    columns, depth = columns_of_slots(product.slots), depth_of(product)

    def find(cell, sizes, packed, offsets, products, places, w, rank):
        panels = _packed(packed, offsets, place, sizes[depth], sizes.hidden, columns(sizes.hidden), rank)
        return WeightMatrix(panels, Matrix(w, products[place].rows, places[place, 0], sizes[depth]))

    return find


def _weights_of_head(cell, sizes, packed, offsets, products, places, w, rank, place, slot, head, heads):
    """The weights of a product of one head, compiled once for all of them."""
    units = sizes.hidden // heads
    panels = _packed(packed, offsets, place, units, units, (slot * sizes.hidden + head * units,), rank)
    return WeightMatrix(panels, Matrix(w, products[place].rows, places[place, 0], units))


_weights_of_products = all_of(
    lambda said: [_weights_of_product(*one) for one in enumerate(said.products) if one[1].heads == 1]
)
_weights_of_heads = all_of(
    lambda said: [
        Numbered(_weights_of_head, (place, one.slots.start, one.head, one.heads))
        for place, one in enumerate(said.products) if one.heads > 1
    ]
)  # fmt: skip


@inner
def vectors_of_head(array, columns, head, units):
    """The panels of a head's units that are among these columns of all units: a thread's, which begin at a panel of
    each head or are all."""
    lanes = panel_lanes(array)
    start, stop = max(columns.start - head * units, 0), min(columns.stop - head * units, units)
    return Range(start // lanes, (stop + lanes - 1) // lanes if stop > start else start // lanes)


@inner
def weights_of(cell, sizes, packed, offsets, products, places, w, rank):
    """The weights of the layer with these offsets in the packed buffer and these places in the flat weights; what they
    need of scratch is the rank's."""
    projection = offsets.size - 4  # behind it those of the vectors, which have no panels
    return Weights(
        products=_weights_of_products(cell, (sizes, packed, offsets, products, places, w, rank)),
        heads=_weights_of_heads(cell, (sizes, packed, offsets, products, places, w, rank)),
        projection=_packed(packed, offsets, projection, sizes.hidden, sizes.output, (0,), rank),
        bias=part(storage(packed), offsets[offsets.size - 2], offsets[offsets.size - 1]),
    )  # fmt: skip


def _packed(packed, offsets, number, depth, units, columns, rank):
    """The packed matrix of a product."""


@overload(_packed, jit_options=OPTIONS)
def _packed_of(packed, offsets, number, depth, units, columns, rank):
    def whole(packed, offsets, number, depth, units, columns, rank):
        return Packed(part(packed, offsets[number], offsets[number + 1]), depth, units, columns)

    def reduced(packed, offsets, number, depth, units, columns, rank):
        panels = panels_of(packed, offsets[number], offsets[number + 1], len(columns) * units, rank)
        return Packed(panels, depth, units, columns)

    return whole if form_of(packed) is Float else reduced


@inner
def sum_biases(products, places, packed, offsets, w, team):
    """Sum the biases of one layer: each rank a part of its columns."""
    bias = part(packed, offsets[offsets.size - 2], offsets[offsets.size - 1])
    own = partition(bias.size, team.rank, team.size)
    clear(part(bias, own.start, own.stop))
    for number in range(len(products)):
        p, start = products[number], places[number, 2]
        if start >= 0:
            for i in range(max(own.start - p.first, 0), min(own.stop - p.first, p.rows.size)):
                bias[p.first + i] += w[start + p.rows[i]]


@kernel
def pack_layer(products, places, packed, offsets, w, rank, size, sync):
    """Pack the weights of one layer and sum its biases."""
    post_call(sync, rank, size)
    team = join(sync, rank, size)
    for number in range(len(products)):
        p = products[number]
        panels = part(packed, offsets[number], offsets[number + 1])
        if panels.size > 0:
            matrix = Matrix(w, p.rows, places[number, 0], places[number, 1])
            pack_columns(panels, matrix, p.rows.size // p.gates, p.gates, team)
    sum_biases(products, places, packed, offsets, w, team)
    barrier(team)
