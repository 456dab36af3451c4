"""What the CPU engine knows of one pseudo-layer before it runs: its cell, sizes and weights, packed for the kernels."""

from __future__ import annotations

from functools import cache
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
    """The array as the kernels take it: one-dimensional, dense, aligned, and of a writeable type.

    Kernels never write what they are given to read, but Numba would compile them anew for read-only arrays.
    """
    dense = np.require(array, requirements=["C", "A"]).reshape(-1)
    return dense if dense.flags.writeable else np.asarray(_Writeable(dense))


class _Writeable:
    """A read-only array's memory, without the flag; keeps the array alive."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def pack(desc: RNNDescriptor, w: np.ndarray, memory: Memory) -> list[Packed]:
    """Pack the weights of every pseudo-layer for the forward products."""
    weights = flat(w)
    result = []
    for index, (cell, sizes, slots, blocks, _, _) in enumerate(layers_of(desc)):
        gates = len(protocol.input_slots(cell))
        first = len(protocol.recurrent_slots(cell))
        recurrent = blocks["weight_hh"][1]
        panels = {
            "input": (blocks.get("weight_ih", (None, 0))[1], sizes.hidden, gates, sizes.input),
            "recurrent": (recurrent, sizes.hidden, first, sizes.output),
            "second": (recurrent + first * sizes.hidden * sizes.output, sizes.hidden, gates - first, sizes.output),
            "projection": (blocks.get("weight_hr", (None, 0))[1], sizes.output, int(desc.projected), sizes.hidden),
        }
        packed = []
        for name, (start, units, count, depth) in panels.items():
            size = gemm.panel_size(depth, units, count, w.itemsize)
            target = memory.take(f"panels_{name}_{index}", (size,), w.dtype)
            if size:
                matrix = Matrix(weights, arange(units * count), start, depth)
                team.run(gemm.pack_weights, size, target, matrix, units, count, depth)
            packed.append(target)
        result.append(Packed(loop.Panels(*packed), _bias(cell, sizes, slots, blocks, weights)))
    return result


def _bias(cell: Any, sizes: loop.Sizes, slots: int, blocks: dict, weights: np.ndarray) -> np.ndarray:
    """Both biases, where the pre-activations stand."""
    total = np.zeros(slots * sizes.hidden, weights.dtype)
    with np.errstate(all="ignore"):  # as in the kernels: what overflows is inf, without a warning
        for name, places in bias_places(cell, blocks):
            (_, start) = blocks[name]
            for gate, slot in enumerate(places):
                total[slot : slot + sizes.hidden] += weights[start + gate * sizes.hidden :][: sizes.hidden]
    return total


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
    """Where one pseudo-layer's states are: (T + D, N, D*P) hidden, (T + D, N, H) cells or (N, H) where not kept."""

    hidden: np.ndarray
    cells: np.ndarray
    keeps_cells: bool


def states_of(run: Run, steps: Steps, sizes: loop.Sizes, direction: int) -> loop.States:
    start, stride = direction * sizes.output, run.hidden.shape[2]
    hidden, cells = run.hidden.reshape(-1), run.cells.reshape(-1)
    before, after = (steps.previous[direction], steps.states) if run.keeps_cells else (steps.batch, steps.batch)
    size = run.cells.shape[-1]
    return loop.States(
        Matrix(hidden, steps.previous[direction], start, stride),
        Matrix(hidden, steps.states, start, stride),
        Matrix(cells, before, 0, size),
        Matrix(cells, after, 0, size),
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
