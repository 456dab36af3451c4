"""Which weights the products of a cell use, and packing them for the time loop."""

from itertools import accumulate
from typing import NamedTuple

import numpy as np

from .machine.barrier import gather, meet, publish
from .machine.gemm import pack_columns, panel_size
from .machine.jit import inner, kernel
from .machine.matrix import Matrix, part
from .machine.partition import share
from .machine.registers import VECTOR_BYTES

BIAS, END = 4, 5
"""Where, in a layer's places, those of its summed biases and of its end stand; in front are those of the panels."""


class Product(NamedTuple):
    """One product of the forward pass; it writes neighbouring columns of the gates.

    Column first + i is the product with row rows[i] of a matrix of `depth` columns that starts at `start` in the flat
    weights; the bias, element rows[i] of a vector that starts at `bias`, is added to it. They are the columns of
    `gates` gates. Without a matrix ("skip" input) `depth` is 0, without a bias `bias` is -1.
    """

    first: int
    rows: np.ndarray
    start: int
    gates: int
    depth: int
    bias: int


class Panels(NamedTuple):
    """Packed weights of the four products; an empty array where there is no such product.

    They are W, R, R's part in the second product of a step, and the projection.
    """

    input: np.ndarray
    recurrent: np.ndarray
    second: np.ndarray
    projection: np.ndarray


def places_of(products, columns, itemsize, start):
    """Where the panels of a layer, the summed biases of its columns, and the next layer start in the packed buffer."""
    lanes = VECTOR_BYTES // itemsize
    sizes = [panel_size(p.depth, p.rows.size // max(p.gates, 1), p.gates, itemsize) for p in products]
    sizes += [-(-columns // lanes) * lanes]
    return np.array(list(accumulate(sizes, initial=start)), np.int64)


@inner
def panels_of(packed, places):
    """The panels of the layer with these places."""
    return Panels(
        part(packed, places[0], places[1]), part(packed, places[1], places[2]), part(packed, places[2], places[3]),
        part(packed, places[3], places[4])
    )


@kernel
def pack_layer(products, w, packed, places, member, members, sync):
    """Pack the weights of one layer and sum its biases."""
    publish(sync, member, members)
    members = gather(sync, member, members)
    for number in range(len(products)):
        p = products[number]
        panels = part(packed, places[number], places[number + 1])
        if panels.size > 0:
            weights = Matrix(w, p.rows, p.start, p.depth)
            pack_columns(panels, weights, p.rows.size // p.gates, p.gates, p.depth, member, members)
    bias = part(packed, places[BIAS], places[END])
    first, last = share(bias.size, member, members)
    for column in range(first, last):
        bias[column] = 0
    for p in products:
        if p.bias >= 0:
            for i in range(max(first - p.first, 0), min(last - p.first, p.rows.size)):
                bias[p.first + i] += w[p.bias + p.rows[i]]
    meet(sync, members)
