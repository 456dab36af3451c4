"""Which weights the products of a cell use, and packing them for the time loop."""

from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numba.extending import overload

from .machine.formats import FORMS, Float, form_of, panels_of, storage
from .machine.gemm import Packed, pack_columns, panel_size
from .machine.jit import OPTIONS, inner, kernel
from .machine.matrix import Matrix, part
from .machine.partition import partition
from .machine.registers import VECTOR_BYTES
from .machine.sync import barrier, join, post_call
from .stages import input_columns, recurrent_columns, second_columns

BIAS = 5
"""Which of a layer's offsets is that of its summed biases, behind which its vectors stand; in front of it are those of
the panels, behind its end."""


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


class Sizes(NamedTuple):
    """Sizes of one layer: hidden_size H, output_size P (H without a projection), input_size of its input product."""

    hidden: int
    output: int
    input: int


class Weights(NamedTuple):
    """A layer's packed weights, by the product that they are for, and what the products start from.

    `second` is for the product of a cell's R with what one of its stages wrote. An empty array is no product.
    """

    input: Packed
    recurrent: Packed
    second: Packed
    projection: Packed
    bias: np.ndarray  # of each column of the gates; then the vectors
    zeros: np.ndarray


def offsets_of(products, columns, itemsize, start, weights=None):
    """Where the panels of a layer, the summed biases of its columns, and the next layer start in the packed buffer."""
    form, sizes = FORMS[weights], []
    for p in products:
        words = -(-p.depth // form.per_word)
        scales = 2 * padded(p.rows.size, itemsize) if form.has_scales and p.gates else 0
        sizes.append(panel_size(words, p.rows.size // max(p.gates, 1), p.gates, itemsize) + scales)
    sizes.append(padded(columns, itemsize))
    return np.array(list(accumulate(sizes, initial=start)), np.int64)


def padded(columns, itemsize):
    """Columns in whole vectors."""
    lanes = VECTOR_BYTES // itemsize
    return -(-columns // lanes) * lanes


@inner
def weights_of(cell, sizes, packed, offsets, zeros, rank):
    """The weights of the layer with these offsets in the packed buffer; what they need of scratch is the rank's."""
    units, one = sizes.hidden, (0,)
    inputs, recurrent, second = input_columns(cell, units), recurrent_columns(cell, units), second_columns(cell, units)
    return Weights(
        _packed(packed, offsets, 0, sizes.input, units, inputs, rank),
        _packed(packed, offsets, 1, sizes.output, units, recurrent, rank),
        _packed(packed, offsets, 2, sizes.output, units, second, rank),
        _packed(packed, offsets, 3, units, sizes.output, one, rank),
        part(storage(packed), offsets[BIAS], offsets[BIAS + 1]), zeros
    )


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


@kernel
def pack_layer(products, packed, offsets, w, rank, size, sync):
    """Pack the weights of one layer and sum its biases."""
    post_call(sync, rank, size)
    team = join(sync, rank, size)
    for number in range(len(products)):
        p = products[number]
        panels = part(packed, offsets[number], offsets[number + 1])
        if panels.size > 0:
            pack_columns(panels, Matrix(w, p.rows, p.start, p.depth), p.rows.size // p.gates, p.gates, team)
    bias = part(packed, offsets[BIAS], offsets[BIAS + 1])
    own = partition(bias.size, team.rank, team.size)
    for column in range(own.start, own.stop):
        bias[column] = 0
    for p in products:
        if p.bias >= 0:
            for i in range(max(own.start - p.first, 0), min(own.stop - p.first, p.rows.size)):
                bias[p.first + i] += w[p.bias + p.rows[i]]
    barrier(team)
