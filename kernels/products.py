"""Which weights the products of a cell use, and packing them for the time loop."""

from itertools import accumulate
from typing import NamedTuple

import numpy as np

from .machine.gemm import Packed, pack_columns, panel_size
from .machine.jit import inner, kernel
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


def offsets_of(products, columns, itemsize, start):
    """Where the panels of a layer, the summed biases of its columns, and the next layer start in the packed buffer."""
    lanes = VECTOR_BYTES // itemsize
    sizes = [panel_size(p.depth, p.rows.size // max(p.gates, 1), p.gates, itemsize) for p in products]
    sizes += [-(-columns // lanes) * lanes]
    return np.array(list(accumulate(sizes, initial=start)), np.int64)


@inner
def weights_of(cell, sizes, packed, offsets, zeros):
    """The weights of the layer with these offsets in the packed buffer."""
    units, one = sizes.hidden, (0,)
    return Weights(
        Packed(part(packed, offsets[0], offsets[1]), sizes.input, units, input_columns(cell, units)),
        Packed(part(packed, offsets[1], offsets[2]), sizes.output, units, recurrent_columns(cell, units)),
        Packed(part(packed, offsets[2], offsets[3]), sizes.output, units, second_columns(cell, units)),
        Packed(part(packed, offsets[3], offsets[4]), units, sizes.output, one),
        part(packed, offsets[BIAS], offsets[BIAS + 1]), zeros
    )


@kernel
def pack_layer(products, w, packed, offsets, rank, size, sync):
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
