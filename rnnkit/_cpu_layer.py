"""What the CPU engine knows of one pseudo-layer before it runs: its cell, sizes and weights, packed for the kernels."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import cell as protocol
from rnnkit.kernels import dropout, gemm, loop, team
from rnnkit.kernels.gru import ResetAfterGRU, ResetBeforeGRU
from rnnkit.kernels.lstm import LSTM
from rnnkit.kernels.matrix import Matrix
from rnnkit.kernels.vanilla import Vanilla
from rnnkit.steps import Steps
from rnnkit.weights import weight_layout
from rnnkit.workspace import Memory, gate_slots

_CACHED_BYTES = 1 << 20  # recurrent weights of this size stay in a core's L2 cache


class Packed(NamedTuple):
    """Weights of one pseudo-layer as the time loop reads them."""

    panels: loop.Panels
    bias: np.ndarray


class Layer(NamedTuple):
    """What is known of one pseudo-layer from the descriptor alone."""

    cell: Any
    sizes: loop.Sizes
    slots: int  # columns of hidden_size numbers in a row of the gate buffer
    blocks: dict[str, tuple[tuple[int, ...], int]]  # weight_ih, weight_hh, weight_hr, bias_ih, bias_hh: shape, start
    layer: int
    direction: int


@cache
def layers_of(desc: RNNDescriptor) -> tuple[Layer, ...]:
    cell = _cell(desc)
    blocks = {name: (shape, start) for name, shape, start in weight_layout(desc)}
    result = []
    for layer in range(desc.num_layers):
        inputs = desc.layer_input_size(layer) if desc.has_input_weight(layer) else 0
        sizes = loop.Sizes(desc.hidden_size, desc.output_size, inputs)
        for direction in range(desc.num_directions):
            suffix = f"_l{layer}" + "_reverse" * direction
            own = {name.removesuffix(suffix): block for name, block in blocks.items() if _suffix(name) == suffix}
            result.append(Layer(cell, sizes, gate_slots(desc), own, layer, direction))
    return tuple(result)


def _suffix(name: str) -> str:
    return name[name.rindex("_l") :]


def _cell(desc: RNNDescriptor) -> Any:
    """The cell of a mode: the one table of modes and cell types."""
    if desc.mode == "lstm":
        low, high = desc.cell_clip or (-np.inf, np.inf)
        real = desc.np_dtype.type
        return LSTM(desc.hidden_size, desc.cell_clip is not None, real(low), real(high))
    if desc.mode == "gru":
        return (ResetAfterGRU if desc.reset_after else ResetBeforeGRU)(desc.hidden_size)
    return Vanilla(desc.hidden_size, desc.mode == "rnn_relu")


def flat(array: np.ndarray) -> np.ndarray:
    """The array as the kernels take it, in one dimension."""
    return dense(array).reshape(-1)


def dense(array: np.ndarray) -> np.ndarray:
    """The array, or a copy, as the kernels take it: C-contiguous, aligned, and of a writeable type.

    Kernels never write what they are given to read, but Numba would compile them anew for read-only arrays.
    """
    if array.flags.carray:
        return array
    array = np.require(array, requirements=["C", "A"])
    return array if array.flags.writeable else np.asarray(_Writeable(array))


class _Writeable:
    """A read-only array's memory, without the flag; keeps the array alive."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


class Prepared(NamedTuple):
    """Weights of all pseudo-layers, packed for the forward products, in one buffer."""

    buffer: np.ndarray
    table: np.ndarray  # (L*D, 6) where each layer's parts start, as `kernels.stack` names them

    def layer(self, index: int) -> Packed:
        """Return the weights of one pseudo-layer."""
        *panels, bias = (self.buffer[start:end] for start, end in pairwise(self.table[index]))
        return Packed(loop.Panels(*panels), bias)


class _Product(NamedTuple):
    """One of the forward products of a pseudo-layer: B[k, unit, gate] = w[start + (gate*units + unit)*depth + k]."""

    start: int
    units: int
    gates: int
    depth: int


def _products(layer: Layer, projected: bool) -> list[_Product]:
    """The products in the order of `loop.Panels`; those that the layer does not have are of no gates."""
    cell, sizes, _, blocks, _, _ = layer
    gates, first = len(protocol.input_slots(cell)), len(protocol.recurrent_slots(cell))
    start = {name: block[1] for name, block in blocks.items()}
    second = start["weight_hh"] + first * sizes.hidden * sizes.output
    return [
        _Product(start.get("weight_ih", 0), sizes.hidden, gates if sizes.input else 0, sizes.input),
        _Product(start["weight_hh"], sizes.hidden, first, sizes.output),
        _Product(second, sizes.hidden, gates - first, sizes.output),
        _Product(start.get("weight_hr", 0), sizes.output, int(projected), sizes.hidden),
    ]


def pack(desc: RNNDescriptor, w: np.ndarray, memory: Memory) -> Prepared:
    """Pack the weights and sum the biases of every pseudo-layer."""
    weights, layers = flat(w), layers_of(desc)
    lanes = gemm.VECTOR_BYTES // w.itemsize
    sizes = []
    for layer in layers:
        panels = [gemm.panel_size(p.depth, p.units, p.gates, w.itemsize) for p in _products(layer, desc.projected)]
        sizes.append([*panels, -(-layer.slots * layer.sizes.hidden // lanes) * lanes])
    ends = np.cumsum(sizes).reshape(len(layers), -1)
    table = np.concatenate([ends[:, :1] - np.array(sizes)[:, :1], ends], axis=1)
    prepared = Prepared(memory.take("packed", (int(ends[-1, -1]),), w.dtype), table)
    for index, layer in enumerate(layers):
        panels, bias = prepared.layer(index)
        for target, (start, units, gates, depth) in zip(panels, _products(layer, desc.projected), strict=True):
            if target.size:
                matrix = Matrix(weights, arange(units * gates), start, depth)
                team.run(gemm.pack_weights, target.size, target, matrix, units, gates, depth)
        _sum_biases(bias, layer, weights)
    return prepared


def _sum_biases(total: np.ndarray, layer: Layer, weights: np.ndarray) -> None:
    """Both biases, where the pre-activations stand."""
    total[:] = 0
    size = layer.sizes.hidden
    with np.errstate(all="ignore"):  # as in the kernels: what overflows is inf, without a warning
        for name, slots in bias_places(layer.cell, layer.blocks):
            start = layer.blocks[name][1]
            for gate, slot in enumerate(slots):
                total[slot : slot + size] += weights[start + gate * size : start + (gate + 1) * size]


def bias_places(cell: Any, blocks: dict) -> list[tuple[str, tuple[int, ...]]]:
    places = (("bias_ih", protocol.input_slots(cell)), ("bias_hh", protocol.recurrent_bias_slots(cell)))
    return [(name, slots) for name, slots in places if name in blocks]


@cache
def zeros(size: int, dtype: np.dtype) -> np.ndarray:
    return np.zeros(size, dtype)


@cache
def arange(size: int) -> np.ndarray:
    return np.arange(size)


class Run(NamedTuple):
    """Where one pseudo-layer's states are: (T + D, N, D*P) hidden, (T + D, N, H) cells or (2, N, H) where not kept."""

    hidden: np.ndarray
    cells: np.ndarray
    keeps_cells: bool


def states_of(run: Run, steps: Steps, sizes: loop.Sizes, direction: int) -> loop.States:
    start, stride = direction * sizes.output, run.hidden.shape[2]
    hidden, cells = run.hidden.reshape(-1), run.cells.reshape(-1)
    before, after, _, _ = steps.cells(direction, run.keeps_cells)
    size = run.cells.shape[-1]
    return loop.States(
        Matrix(hidden, steps.previous[direction], start, stride), Matrix(hidden, steps.states, start, stride),
        Matrix(cells, before, 0, size), Matrix(cells, after, 0, size)
    )


def row_bounds(layer: Layer, steps: Steps, itemsize: int) -> np.ndarray:
    """Where to cut the batch, if the threads shall share its rows; empty if they shall share the units.

    Sharing rows saves a meeting a step, but each thread then reads all recurrent weights in every step: they must fit
    into its cache, and the rows must come out even.
    """
    threads = team.wanted_size()
    weights = len(protocol.recurrent_slots(layer.cell)) * layer.sizes.hidden * layer.sizes.output * itemsize
    rows = -(-steps.batch_size // threads) * threads
    if weights > _CACHED_BYTES or rows * 8 > steps.batch_size * 9:
        return arange(0)
    return steps.bounds(threads)


def input_matrix(x: np.ndarray, steps: Steps) -> Matrix:
    return Matrix(flat(x), steps.rows, 0, x.shape[-1])


def drop(source: Matrix, target: Matrix, kept: Matrix, desc: RNNDescriptor) -> Matrix:
    """Write `source`, or its gradient, with dropout applied into `target`, and return that."""
    scale = desc.np_dtype.type(0 if desc.dropout == 1 else 1 / (1 - desc.dropout))
    count, width = target.rows.size, target.stride
    team.run(dropout.drop, count * width, target, source, kept, scale, count, width)
    return target
