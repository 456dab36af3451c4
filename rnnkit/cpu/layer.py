"""Constants of a layer for the CPU engine: its cell, sizes and packed weights."""

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
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.bound import Bound
from rnnkit_kernels.machine.formats import ROWS_AT_ONCE, form_of, packed_as, scratch_words
from rnnkit_kernels.machine.registers import VECTOR_BYTES
from rnnkit_kernels.means import mean_blocks
from rnnkit_kernels.operands import LayerConstants, Sizes
from rnnkit_kernels.products import PackedProduct, depth_of, offsets_of, pack_layer, weight_starts_of

DESCRIPTORS = 64
"""Number of descriptors in each cache of what depends only on the descriptor."""

_MOVE = 32  # cost of packing one number, in multiply-adds


class Layer(NamedTuple):
    """What depends only on the descriptor, of one pseudo-layer."""

    index: int
    layer: int
    direction: int
    cell: Any
    sizes: Sizes
    columns: int  # of the gate buffer
    products: tuple[PackedProduct, ...]  # the cell's, the projection, the vectors
    weight_starts: np.ndarray  # of their weights
    gradient_columns: int  # of the gates' gradients: slots, sums of means, the projection's sum
    offsets: np.ndarray  # of its panels in the packed weights
    input_work: int  # multiply-adds of a row with W; `step_work` are those in the time loop
    step_work: int
    barriers: int  # of a step whose units are split between threads: one after each phase and the projection
    passes: int  # of a kernel call: one, or two if the network has at least two pseudo-layers
    shares_units: bool  # whether threads may split the units: no panel spans two heads
    width: int  # of the network's input: x, then side inputs in the last `inputs_size` columns
    inputs_size: int
    precision: str | None  # of the weights, as passed to `rnnkit.prepare`
    constants: Bound  # its `LayerConstants`, for kernels
    code_cache: dict[Any, Any]  # of its kernel calls (`thread_pool.bound`); "drawn": of those that read noises

    @property
    def input_size(self) -> int:
        """Columns of its input; without W ("skip" input) one for each unit."""
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
    def input_weights(self) -> int:
        """Words of W."""
        return self.input_work // form_of(self.precision).per_word

    @property
    def recurrent_weights(self) -> int:
        """Words of the largest product with R in a step."""
        largest = max(product.rows.size * product.depth for product in self.products[1:-2])
        return largest // form_of(self.precision).per_word


@lru_cache(DESCRIPTORS)
def layers_of(desc: RNNDescriptor, precision: str | None = None, in_place: bool = False) -> tuple[Layer, ...]:
    """Return the pseudo-layers, with packed weights of this precision (`rnnkit.prepare`), or with weights read in
    place."""
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
        gradient_columns = products[-2].first + products[-2].rows.size
        step_work = sum(product.rows.size * product.depth for product in products[1:])
        constants = LayerConstants(sizes, products, weight_starts_of(products), offsets)
        heads, lanes = declaration.heads, VECTOR_BYTES // desc.np_dtype.itemsize
        result.append(Layer(
            index=index, layer=layer, direction=direction, cell=cell, sizes=sizes, columns=gate_columns(desc),
            products=products, weight_starts=constants.weight_starts, gradient_columns=gradient_columns,
            offsets=offsets, input_work=products[0].rows.size * sizes.input, step_work=step_work,
            barriers=len(declaration.phases) + desc.projected, passes=passes,
            shares_units=heads == 1 or sizes.hidden // heads % lanes == 0, width=desc.row_size,
            inputs_size=desc.inputs_size, precision=precision, constants=Bound(constants), code_cache={},
        ))  # fmt: skip
        end = offsets[-1]
    return tuple(result)


@lru_cache(DESCRIPTORS)
def groups_of(
    desc: RNNDescriptor, dropping: bool = False, precision: str | None = None, in_place: bool = False
) -> tuple[tuple[Layer, ...], ...]:
    """Return the groups of pseudo-layers that run in one kernel call, from the lowest to the highest: the directions of
    a layer, or two layers of one direction without dropout between them."""
    layers = layers_of(desc, precision, in_place)
    size = 1 if dropping and desc.num_directions == 1 else 2
    return tuple(layers[start : start + size] for start in range(0, len(layers), size))


def is_stack(group: Sequence[Layer]) -> bool:
    """Return whether the second layer of a group is above the first, not its other direction."""
    return len(group) == 2 and group[0].direction == group[1].direction


def filled(passes: Sequence[Any], layer: Layer) -> tuple[Any, ...]:
    """Pad the passes to the number that the layer's kernels take; extra ones do not run."""
    return (*passes, *passes)[: layer.passes]


def _products(declaration: Any, sizes: Sizes, starts: dict[str, int], suffix: str):
    """Yield the products of a layer, and its vectors; an absent projection has no rows."""
    for product in declaration.products:
        name, gates = ("ih", declaration.input_gates) if product.source is None else ("hh", declaration.recurrent_gates)
        blocks_of_w = np.array(declaration.rows_of(product.slots, gates), np.int64)
        rows = (blocks_of_w[:, None] * sizes.hidden + np.arange(sizes.hidden)).reshape(-1)
        start, bias = (starts.get(f"{kind}_{name}{suffix}", -1) for kind in ("weight", "bias"))
        depth, first = sizes[depth_of(product)] if blocks_of_w.size else 0, product.slots.start * sizes.hidden
        blocks = 1
        if product.heads > 1:
            depth, blocks = sizes.hidden // product.heads, max(blocks_of_w.size * product.heads, 1)
        yield PackedProduct(first, rows, start, blocks_of_w.size, depth, bias, blocks, product.heads)
    projection = starts.get(f"weight_hr{suffix}", -1)
    rows, depth = (sizes.output, sizes.hidden) if projection >= 0 else (0, 0)
    # In backward the columns of the projection's sum follow the slots and the sums of means. A scalar is one number,
    # but its gradient has a column for each unit.
    column, units = len(declaration.slots) * sizes.hidden, len(declaration.vectors) * sizes.hidden
    sums = len(declaration.gradient_means) * mean_blocks(sizes.hidden)
    yield PackedProduct(column + sums, row_numbers(rows), projection, min(rows, 1), depth, -1, 1, 1)
    vectors = starts[declaration.vectors[0].name + suffix] if units else -1
    shared = len(declaration.scalars)
    yield PackedProduct(column, row_numbers(units - shared * sizes.hidden + shared), -1, 0, 0, vectors, 1, 1)


def flat(array: np.ndarray) -> np.ndarray:
    """Return the array as the kernels take it, in one dimension."""
    return contiguous(array).ravel()


def contiguous(array: np.ndarray) -> np.ndarray:
    """Return the array, or a copy, as the kernels take it: not a subclass, C-contiguous, aligned, of a writeable type.

    Kernels do not write their inputs, but Numba would compile another version for read-only arrays.
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


def new_array(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return a new array; a substitute for `Arena.take`."""
    return np.empty(shape, dtype)


def deepest_of(layers: Sequence[Layer]) -> int:
    """Return the most numbers of a row that a product multiplies."""
    return max(product.depth for layer in layers for product in layer.products)


def with_scratch(packed: np.ndarray, precision: str | None, deepest: int, rows: int, threads: int, take: Any) -> Any:
    """Return packed weights as kernels take them, with scratch for the rows, of up to `deepest` numbers, that a thread
    takes at a time; it is an array that `take` returns."""
    if precision is None:
        return packed
    rows = min(rows, ROWS_AT_ONCE)
    size = scratch_words(precision, rows, deepest)
    scratch = take(f"scratch_{precision}", (threads * size,), packed.dtype)
    return packed_as(precision, packed, scratch, size, row_numbers(rows))


def prepare_packing(packed: Any, layers: Sequence[Layer]) -> list[Callable[[np.ndarray], None]]:
    """Prepare the kernel calls that pack each pseudo-layer's flat weights and sum its biases, at its `offsets`."""
    calls = []
    for layer in layers:
        work = _MOVE * int(layer.offsets[-1] - layer.offsets[0])
        w = packed.words if layer.precision else packed  # stands for the weights, which are flat, too
        calls.append(thread_pool.bound(pack_layer, work, w, layer.constants, packed, code_cache=layer.code_cache))
    return calls


def pack(desc: RNNDescriptor, w: np.ndarray, arena: Arena, precision: str | None = None) -> np.ndarray:
    """Pack the weights into the arena and return them: not those of int8, which `reduced` packs."""
    layers, w = layers_of(desc, precision), flat(w)
    packed = arena.take("packed", (int(layers[-1].offsets[-1]),), desc.np_dtype)
    for call in prepare_packing(with_scratch(packed, precision, 0, 0, 0, new_array), layers):
        call(w)
    return packed
