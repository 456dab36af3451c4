"""What the CPU engine knows of a layer before it runs: its cell, sizes and weights, packed for the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.steps import row_numbers
from rnnkit.call.workspace import gate_columns
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import suffix_of, weight_layout
from rnnkit.kernels.machine import team
from rnnkit.kernels.machine.bound import Bound
from rnnkit.kernels.machine.formats import FORMATS
from rnnkit.kernels.machine.registers import VECTOR_BYTES
from rnnkit.kernels.means import mean_blocks
from rnnkit.kernels.operands import LayerConstants, Sizes
from rnnkit.kernels.products import PackedProduct, depth_of, offsets_of, pack_layer, places_of

DESCRIPTORS = 64
"""Networks of which is kept what follows from the descriptor alone."""

_MOVE = 32  # multiply-adds in the time that packing a number takes


class Layer(NamedTuple):
    """What is known of one pseudo-layer from the descriptor alone."""

    index: int
    layer: int
    direction: int
    cell: Any
    sizes: Sizes
    columns: int  # numbers in a row of the gate buffer
    products: tuple[PackedProduct, ...]  # the cell's, the projection, the vectors
    places: np.ndarray  # of their weights
    gradient_columns: int  # in a row of the gates' gradients: slots, sums of means, the projection's sum
    offsets: np.ndarray  # of its panels in the packed weights
    input_work: int  # multiply-adds of a row: those of W, and those in the time loop
    step_work: int
    meetings: int  # barriers of a step whose units are shared out: one behind each phase and the projection
    passes: int  # of a call of its kernels: one, or two where the network has as many layers or directions
    shares_units: bool  # whether threads may: no panel holds units of two heads
    width: int  # of a row of the network's input: x and the side inputs, which have the last `inputs_size` columns
    inputs_size: int
    precision: str | None  # of the weights, as `rnnkit.prepare` takes it
    facts: Bound  # `LayerConstants` of it, as kernels read them
    site: dict[Any, Any]  # of its calls of kernels (`team.bound`); under "drawn" that of calls that read noises

    @property
    def input_size(self) -> int:
        """Numbers in a row of its input; without W ("skip" input) there is one for each unit."""
        return self.width if self.layer == 0 else self.sizes.input or self.sizes.hidden

    @property
    def outputs(self) -> slice:
        """Its columns of the hidden states of both directions."""
        return slice(self.direction * self.sizes.output, (self.direction + 1) * self.sizes.output)

    @property
    def work(self) -> int:
        """Multiply-adds of a row in a step, at least 1."""
        return max(self.input_work + self.step_work, 1)

    @property
    def recurrent_weights(self) -> int:
        """Words that the largest product of R in a step reads."""
        largest = max(product.rows.size * product.depth for product in self.products[1:-2])
        return largest // FORMATS[self.precision].per_word


@lru_cache(DESCRIPTORS)
def layers_of(desc: RNNDescriptor, precision: str | None = None, in_place: bool = False) -> tuple[Layer, ...]:
    """The pseudo-layers, with packed weights of this precision (`rnnkit.prepare`), or with
    weights read where they are."""
    cell, declaration = desc.cell, desc.cell.declaration
    starts = {name: start for name, _, start in weight_layout(desc)}
    passes, result, end = min(desc.num_pseudo_layers, 2), [], 0
    for index in range(desc.num_pseudo_layers):
        layer, direction = divmod(index, desc.num_directions)
        inputs = desc.layer_input_size(layer) if desc.has_input_weight(layer) else 0
        sizes = Sizes(desc.hidden_size, desc.output_size, inputs)
        products = tuple(_products(declaration, sizes, starts, suffix_of(layer, direction)))
        columns = max(len(declaration.slots) * sizes.hidden, products[-1].first + products[-1].rows.size)
        offsets = offsets_of(products, columns, desc.np_dtype.itemsize, end, precision, in_place)
        width = products[-2].first + products[-2].rows.size
        step_work = sum(product.rows.size * product.depth for product in products[1:])
        work = products[0].rows.size * sizes.input, step_work, len(declaration.phases) + desc.projected
        bound = LayerConstants(sizes, products, places_of(products), offsets)
        facts = cell, sizes, gate_columns(desc), products, bound.places, width, offsets, *work, passes
        heads, lanes = declaration.heads, VECTOR_BYTES // desc.np_dtype.itemsize
        shares_units = heads == 1 or sizes.hidden // heads % lanes == 0
        row = shares_units, desc.row_size, desc.inputs_size
        result.append(Layer(index, layer, direction, *facts, *row, precision, Bound(bound), {}))
        end = offsets[-1]
    return tuple(result)


@lru_cache(DESCRIPTORS)
def groups_of(
    desc: RNNDescriptor, dropping: bool = False, precision: str | None = None, in_place: bool = False
) -> tuple[tuple[Layer, ...], ...]:
    """The pseudo-layers that run in one call of a kernel, from the lowest to the highest: the directions of a layer, or
    two layers of one direction, if nothing is dropped between them."""
    layers = layers_of(desc, precision, in_place)
    size = 1 if dropping and desc.num_directions == 1 else 2
    return tuple(layers[start : start + size] for start in range(0, len(layers), size))


def is_stack(group: Sequence[Layer]) -> bool:
    """Whether the second of a group's layers is above the first, not the other direction."""
    return len(group) == 2 and group[0].direction == group[1].direction


def filled(passes: Sequence[Any], layer: Layer) -> tuple[Any, ...]:
    """As many passes as the layer's kernels take; those that are too many do not run."""
    return (*passes, *passes)[: layer.passes]


def _products(declaration: Any, sizes: Sizes, starts: dict[str, int], suffix: str):
    """The products of a layer, and its vectors; of a projection that is not there the rows are none."""
    for product in declaration.products:
        name, gates = ("ih", declaration.input_gates) if product.source == "x" else ("hh", declaration.recurrent_gates)
        own = np.array(declaration.rows_of(product.slots, gates), np.int64)
        rows = (own[:, None] * sizes.hidden + np.arange(sizes.hidden)).reshape(-1)
        start, bias = (starts.get(f"{kind}_{name}{suffix}", -1) for kind in ("weight", "bias"))
        depth, first = sizes[depth_of(product)] if own.size else 0, product.slots.start * sizes.hidden
        blocks = 1
        if product.heads > 1:
            depth, blocks = sizes.hidden // product.heads, max(own.size * product.heads, 1)
        yield PackedProduct(first, rows, start, own.size, depth, bias, blocks, product.heads)
    projection = starts.get(f"weight_hr{suffix}", -1)
    rows, depth = (sizes.output, sizes.hidden) if projection >= 0 else (0, 0)
    # Backward, the projection's sum has the columns behind those of the slots and the sums of means. A scalar is one
    # number, of which the gradient has a column for each unit.
    column, own = len(declaration.slots) * sizes.hidden, len(declaration.vectors) * sizes.hidden
    sums = len(declaration.gradient_means) * mean_blocks(sizes.hidden)
    yield PackedProduct(column + sums, row_numbers(rows), projection, min(rows, 1), depth, -1, 1, 1)
    vectors = starts[declaration.vectors[0].name + suffix] if own else -1
    shared = len(declaration.scalars)
    yield PackedProduct(column, row_numbers(own - shared * sizes.hidden + shared), -1, 0, 0, vectors, 1, 1)


def flat(array: np.ndarray) -> np.ndarray:
    """The array as the kernels take it, in one dimension."""
    return dense(array).ravel()


def dense(array: np.ndarray) -> np.ndarray:
    """The array, or a copy, as the kernels take it: no subclass, C-contiguous, aligned, and of a writeable type.

    Kernels never write what they are given to read, but a read-only array would be another type to Numba.
    """
    if type(array) is np.ndarray:
        if array.flags.carray:
            return array
        if not array.flags.c_contiguous:
            return array.copy()  # `np.require` takes 6 us more
    array = np.require(np.asarray(array), requirements=["C", "A"])
    return array if array.flags.writeable else np.asarray(_Writeable(array))


class _Writeable:
    """A read-only array's memory, without the flag; keeps the array alive."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def ready_to_pack(packed: np.ndarray, layers: Sequence[Layer]) -> list[Callable[[np.ndarray], None]]:
    """The kernel calls that pack the flat weights of every pseudo-layer and sum its biases, where its `offsets` say."""
    calls = []
    for layer in layers:
        work = _MOVE * int(layer.offsets[-1] - layer.offsets[0])
        calls.append(team.bound(pack_layer, work, packed, layer.facts, packed, site=layer.site))  # w is flat, too
    return calls


def pack(desc: RNNDescriptor, w: np.ndarray, arena: Arena) -> np.ndarray:
    """The packed weights, in the arena."""
    layers, w = layers_of(desc), flat(w)
    packed = arena.take("packed", (int(layers[-1].offsets[-1]),), desc.np_dtype)
    for call in ready_to_pack(packed, layers):
        call(w)
    return packed
