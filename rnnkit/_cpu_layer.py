"""What the CPU engine knows of a layer before it runs: its cell, sizes and weights, packed for the kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import cell as protocol
from rnnkit.kernels import dropout, loop, team
from rnnkit.kernels.gru import ResetAfterGRU, ResetBeforeGRU
from rnnkit.kernels.lstm import LSTM
from rnnkit.kernels.matrix import Matrix
from rnnkit.kernels.products import Product, pack_layer, places_of
from rnnkit.kernels.simd import VECTOR_BYTES
from rnnkit.kernels.tile import provide
from rnnkit.kernels.vanilla import Vanilla
from rnnkit.steps import CellRows, Steps
from rnnkit.weights import weight_layout
from rnnkit.workspace import Memory, gate_slots

_MOVE = 32  # multiply-adds in the time that packing a number takes
_CACHED_BYTES = 1 << 20  # recurrent weights of this size stay in a core's L2 cache
_CHUNK_BYTES = 1 << 20  # gates of a chunk of steps (float32): from product to use they stay in the threads' L2
# With fewer rows than that for each thread a step takes as long as reading the weights does. Two threads, LSTM, H = 256
# (1 MiB): 1.3 times as fast by units with 1 row each, 1.1 times with 2; H = 128: 1.1 times as fast by rows with 1.
_ROWS, _LIGHT_BYTES = 3, 1 << 18
# Units that a thread takes at a time. Where nothing else runs, pieces cost 1-2 % with 64, 2-4 % with 32; where another
# program takes a third of one of two cores, they save 3-20 %, with 128 half as much (Zen 3, LSTM, H = 256 to 800).
_PIECE = 64
_PIECE_WORK = 1 << 19  # multiply-adds in a step that make up a piece, about 5 us on one thread; to take it costs 0.1 us


class Layer(NamedTuple):
    """What is known of one pseudo-layer from the descriptor alone."""

    cell: Any
    sizes: loop.Sizes
    slots: int  # columns of hidden_size numbers in a row of the gate buffer
    products: tuple[Product, ...]  # in the order of `products.Panels`
    places: np.ndarray  # of its panels in the packed weights
    kind: tuple[type, str, int]  # cell, dtype, directions: what decides about the types of a kernel's arguments

    @property
    def columns(self) -> int:
        """Numbers in a row of the gate buffer."""
        return self.slots * self.sizes.hidden

    @property
    def recurrent_weights(self) -> int:
        """Numbers that the first product of a step reads."""
        return self.products[1].rows.size * self.sizes.output

    @property
    def gradient_columns(self) -> int:
        """Numbers in a row of the gates' gradients."""
        projection = self.products[-1]
        return projection.first + projection.rows.size if projection.gates else self.columns


@cache
def layers_of(desc: RNNDescriptor) -> tuple[tuple[Layer, ...], ...]:
    """The pseudo-layers of every layer, one for each direction."""
    cell, slots = _cell(desc), gate_slots(desc)
    starts = {name: start for name, _, start in weight_layout(desc)}
    kind = type(cell), desc.dtype, desc.num_directions
    result, end = [], 0
    for layer in range(desc.num_layers):
        inputs = desc.layer_input_size(layer) if desc.has_input_weight(layer) else 0
        sizes = loop.Sizes(desc.hidden_size, desc.output_size, inputs)
        directions = []
        for direction in range(desc.num_directions):
            suffix = f"_l{layer}" + "_reverse" * direction
            products = tuple(_products(cell, sizes, slots, starts, suffix))
            places = places_of(products, slots * sizes.hidden, desc.np_dtype.itemsize, end)
            directions.append(Layer(cell, sizes, slots, products, places, kind))
            end = places[-1]
        result.append(tuple(directions))
    return tuple(result)


def _products(cell: Any, sizes: loop.Sizes, slots: int, starts: dict[str, int], suffix: str):
    """The products of a layer, in the order of `products.Panels`; those that it does not have are of no gates."""
    recurrent, second = protocol.recurrent_slots(cell), protocol.second_slots(cell)[:1]

    def product(name: str, slots: tuple[int, ...], gate: int, depth: int) -> Product:
        """The product whose gates, from `gate` on in the weights, have these columns: neighbours, in any order."""
        order = gate + np.argsort(slots).astype(np.int64)
        rows = (order[:, None] * sizes.hidden + np.arange(sizes.hidden)).reshape(-1)
        start, bias = (starts.get(f"{kind}_{name}{suffix}", -1) for kind in ("weight", "bias"))
        first, depth = min(slots, default=0), depth if slots else 0
        return Product(first, rows, start, gate * sizes.hidden, sizes.hidden, len(slots), depth, bias)

    yield product("ih", protocol.input_slots(cell), 0, sizes.input)
    yield product("hh", recurrent, 0, sizes.output)
    yield product("hh", second, len(recurrent), sizes.output)
    projection = starts.get(f"weight_hr{suffix}", -1)
    rows, depth = (sizes.output, sizes.hidden) if projection >= 0 else (0, 0)
    # Backward, the projection's sum has the columns behind the gates, in place of what it multiplied.
    column = (slots - 1) * sizes.hidden
    yield Product(column, arange(rows), projection, 0, rows, min(rows, 1), depth, -1)


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
    return dense(array).ravel()


def dense(array: np.ndarray) -> np.ndarray:
    """The array, or a copy, as the kernels take it: C-contiguous, aligned, and of a writeable type.

    Kernels never write what they are given to read, but a read-only array would be another type to Numba.
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


def pack(desc: RNNDescriptor, w: np.ndarray, memory: Memory) -> np.ndarray:
    """Pack the weights and sum the biases of every pseudo-layer, where their `places` say."""
    w = flat(w)
    layers = [layer for directions in layers_of(desc) for layer in directions]
    packed = memory.take("packed", (int(layers[-1].places[-1]),), w.dtype)
    for layer in layers:
        for product in layer.products:
            if product.gates:
                provide(w.dtype, product.gates)
        work = _MOVE * int(layer.places[-1] - layer.places[0])
        most = max(product.rows.size for product in layer.products)
        team.run(pack_layer, layer.kind, work, layer.products, w, arange(most), packed, layer.places)
    return packed


@cache
def zeros(size: int, dtype: np.dtype) -> np.ndarray:
    return np.zeros(size, dtype)


@cache
def arange(size: int) -> np.ndarray:
    return np.arange(size)


class Run(NamedTuple):
    """What a layer writes: hidden states (T + D, N, D*P), and of each direction gates (steps that are held, N, columns)
    and cells: (T + D, N, H), or (2, N, H) where they are not kept."""

    hidden: np.ndarray
    gates: Sequence[np.ndarray]
    cells: Sequence[np.ndarray]
    keeps_cells: bool

    def rows_of_cells(self, steps: Steps, direction: int) -> CellRows:
        return (steps.kept_cells if self.keeps_cells else steps.passing_cells)[direction]


def kept_run(desc: RNNDescriptor, arrays: dict[str, np.ndarray], layer: int) -> Run:
    """Where a training forward leaves what a layer writes, among the arrays of its workspace."""
    first = layer * desc.num_directions
    indices = range(first, first + desc.num_directions)
    cells = [arrays[f"cell_{index}"] if desc.has_cell else zeros(0, desc.np_dtype) for index in indices]
    return Run(arrays[f"hidden_l{layer}"], [arrays[f"gates_{index}"] for index in indices], cells, keeps_cells=True)


def states_of(run: Run, steps: Steps, sizes: loop.Sizes, direction: int) -> loop.States:
    start, stride = direction * sizes.output, run.hidden.shape[2]
    hidden, cells = run.hidden.ravel(), run.cells[direction].ravel()
    before, after, _, _ = run.rows_of_cells(steps, direction)
    size = run.cells[direction].shape[-1]
    return loop.States(
        Matrix(hidden, steps.previous[direction], start, stride), Matrix(hidden, steps.states, start, stride),
        Matrix(cells, before, 0, size), Matrix(cells, after, 0, size)
    )


def rows_for_pieces(layer: Layer, itemsize: int) -> float:
    """Size of the batch from which on threads that share the units take `piece_of` them at a time, of anybody's share.

    Below it each does its own share: where its weights stay in its cache, or where a step is done sooner than divided.
    """
    weights = layer.recurrent_weights
    return _PIECE_WORK * layer.sizes.hidden / (_PIECE * weights) if weights * itemsize > _CACHED_BYTES else math.inf


def piece_of(itemsize: int) -> int:
    """Panels that a thread takes at a time."""
    return _PIECE * itemsize // VECTOR_BYTES


def split(directions: tuple[Layer, ...], steps: Steps, itemsize: int) -> tuple[np.ndarray, int]:
    """How threads share out a layer: where to cut the batch if by rows, else an empty array; and the panels that a
    thread takes at a time if by units, 0 for its share.

    Sharing rows saves a meeting a step, but each thread then reads all recurrent weights in every step: they must fit
    into its cache, the rows must come out even, and be enough for reading not to take longer than multiplying.
    """
    threads, batch, layer = team.wanted_size(), steps.batch_size, directions[0]
    if threads > 1 and batch >= rows_for_pieces(layer, itemsize):
        return arange(0), piece_of(itemsize)
    if threads % len(directions) == 0:
        threads //= len(directions)
    weights = layer.recurrent_weights * itemsize
    rows = -(-batch // threads) * threads
    if weights > (_CACHED_BYTES if batch >= _ROWS * threads else _LIGHT_BYTES) or rows * 8 > batch * 9:
        return arange(0), 0
    return steps.bounds(threads), 0


def chunk_of(directions: tuple[Layer, ...], batch_size: int) -> int:
    """Steps whose gates are worked on at a time."""
    columns = sum(layer.columns for layer in directions)
    return max(1, _CHUNK_BYTES // (columns * max(batch_size, 1) * 4))


class Outer(NamedTuple):
    """States of all pseudo-layers: hx and cx, None for zeros, and where hy and cy go; cy is None without cells."""

    hx: Any
    cx: Any
    hy: np.ndarray
    cy: Any


def outer(desc: RNNDescriptor, hx: Any, cx: Any, batch_size: int) -> Outer:
    count, dtype = desc.num_pseudo_layers, desc.np_dtype
    hy = np.empty((count, batch_size, desc.output_size), dtype)
    cy = np.empty((count, batch_size, desc.hidden_size), dtype) if desc.has_cell else None
    return Outer(hx, cx, hy, cy)


def run_layer(
    directions: tuple[Layer, ...], packed: np.ndarray, source: Matrix, run: Run, steps: Steps, states: Outer, index: int
) -> None:
    """Run one layer, whose first pseudo-layer has this index, over all steps, from its initial to its final states."""
    arguments = []
    for direction, layer in enumerate(directions):
        units = slice(direction * layer.sizes.output, (direction + 1) * layer.sizes.output)
        run.hidden[(*steps.initial[direction], units)] = 0 if states.hx is None else states.hx[index + direction]
        if states.cy is not None:
            initial = run.rows_of_cells(steps, direction).initial
            run.cells[direction][initial] = 0 if states.cx is None else states.cx[index + direction]
        gates = Matrix(run.gates[direction].ravel(), steps.rows, 0, layer.columns)
        own = states_of(run, steps, layer.sizes, direction)
        arguments.append(loop.Direction(direction == 1, layer.places, gates, own))
    sizes, held = layer.sizes, run.gates[0].shape[0]
    work = steps.rows.size * layer.products[0].rows.size * (sizes.input + sizes.output)
    team.run(
        loop.forward, layer.kind, len(directions) * work, layer.cell, sizes, tuple(arguments), steps.starts,
        *split(directions, steps, packed.itemsize), source, packed, zeros(sizes.hidden, packed.dtype),
        chunk_of(directions, steps.batch_size), held, steps.batch_size
    )
    for direction in range(len(directions)):
        units = slice(direction * sizes.output, (direction + 1) * sizes.output)
        states.hy[index + direction] = run.hidden[(*steps.final[direction], units)]
        if states.cy is not None:
            final = run.rows_of_cells(steps, direction).final
            states.cy[index + direction] = run.cells[direction][final]


def clear_padding(array: np.ndarray, steps: Steps, first: int) -> None:
    """Zero what lies beyond each sequence's length; step t of the array stands at t + first."""
    if steps.padded:
        for n in np.flatnonzero(steps.lengths < steps.seq_len):
            array[steps.lengths[n] + first : steps.seq_len + first, n] = 0


def input_matrix(x: np.ndarray, steps: Steps) -> Matrix:
    return Matrix(flat(x), steps.rows, 0, x.shape[-1])


def drop(source: Matrix, target: Matrix, kept: Matrix, desc: RNNDescriptor) -> Matrix:
    """Write `source`, or its gradient, with dropout applied into `target`, and return that."""
    scale = desc.np_dtype.type(0 if desc.dropout == 1 else 1 / (1 - desc.dropout))
    count, width = target.rows.size, target.stride
    team.run(dropout.drop, desc.dtype, count * width, target, source, kept, scale, count, width)
    return target
