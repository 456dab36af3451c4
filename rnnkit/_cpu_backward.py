"""The gradients of one network on NumPy arrays, pseudo-layer by pseudo-layer from the last to the first."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit._cpu_layer import (
    Layer,
    Run,
    arange,
    drop,
    flat,
    input_matrix,
    layers_of,
    row_bounds,
    states_of,
    zeros,
)
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import cell as protocol
from rnnkit.kernels import gemm, loop, loop_gradient, team, weight_gradient
from rnnkit.kernels.matrix import Matrix
from rnnkit.steps import Steps
from rnnkit.workspace import Memory, Workspace


def backward(desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, dy: Any, dhy: Any, dcy: Any, dw: Any) -> tuple:
    """Gradients of what `forward` left in the workspace: dx, dhx, dcx and dw, which is added to where it is given."""
    with workspace.memory.lend() as memory:
        return _backward(desc, w, workspace, memory, dy, dhy, dcy, dw)


def _backward(
    desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, memory: Memory, dy: Any, dhy: Any, dcy: Any, dw: Any
) -> tuple:
    steps, batch = workspace.steps, workspace.steps.batch_size
    dw = np.zeros(w.shape, w.dtype) if dw is None else dw
    dhx = _start((desc.num_pseudo_layers, batch, desc.output_size), w.dtype, dhy)
    dcx = _start((desc.num_pseudo_layers, batch, desc.hidden_size), w.dtype, dcy) if desc.has_cell else None
    weights = flat(w)
    upper = Matrix(
        np.empty(0, w.dtype) if dy is None else flat(dy), steps.rows, 0, desc.num_directions * desc.output_size
    )
    for layer in reversed(range(desc.num_layers)):
        shape = (steps.seq_len, batch, desc.layer_input_size(layer))
        dx = memory.take(f"dinput_{layer % 2}", shape, w.dtype) if layer else _dx(shape, w.dtype, steps)
        lower = Matrix(dx.reshape(-1), steps.rows, 0, shape[2])
        for direction in range(desc.num_directions):
            index = layer * desc.num_directions + direction
            dcells = (
                Matrix(dcx.reshape(-1), steps.batch, index * batch * desc.hidden_size, desc.hidden_size)
                if desc.has_cell
                else Matrix(upper.data, steps.batch, 0, 0)
            )
            carry = Matrix(dhx.reshape(-1), steps.batch, index * batch * desc.output_size, desc.output_size)
            _LayerGradient(desc, weights, workspace, memory, index, dw).run(upper, lower, carry, dcells)
        if layer and desc.dropout > 0:
            kept = workspace.arrays[f"kept_l{layer}"].reshape(-1)
            drop(lower, lower, Matrix(kept, steps.rows, 0, shape[2]), desc)
        upper = lower
    return dx, dhx, dcx, dw


def _start(shape: tuple[int, ...], dtype: np.dtype, given: Any) -> np.ndarray:
    """A new array that the gradient of a state begins from and is carried back in."""
    return np.zeros(shape, dtype) if given is None else np.array(given, order="C").reshape(shape)


def _dx(shape: tuple[int, ...], dtype: np.dtype, steps: Steps) -> np.ndarray:
    return np.zeros(shape, dtype) if steps.padded else np.empty(shape, dtype)


class _LayerGradient:
    """The backward of one pseudo-layer: what its one kernel call needs."""

    def __init__(
        self, desc: RNNDescriptor, weights: np.ndarray, workspace: Workspace, memory: Memory, index: int,
        dw: np.ndarray
    ) -> None:
        self.desc, self.weights, self.dw, self.index = desc, weights, dw, index
        self.workspace, self.steps, self.memory = workspace, workspace.steps, memory
        self.layer = layers_of(desc)[index]
        gates = workspace.arrays[f"gates_{index}"].reshape(-1)
        self.gates = Matrix(gates, self.steps.rows, 0, self.layer.slots * desc.hidden_size)

    def take(self, name: str, size: int) -> np.ndarray:
        return self.memory.take(name, (size,), self.weights.dtype)

    def run(self, dy: Matrix, dx: Matrix, carry: Matrix, dcells: Matrix) -> None:
        """From dy, and the final states' gradients in carry and dcells, to dx, the initial states' and dw."""
        cell, sizes, slots, _, _, direction = self.layer
        steps, projected = self.steps, self.desc.projected
        width = (slots - projected) * sizes.hidden + projected * sizes.output
        block = gemm.depth_block(self.dw.itemsize)
        chunk = max(1, block // max(steps.batch_size, 1))
        rows = min(chunk, steps.seq_len) * steps.batch_size
        states = self._states()
        products = len(protocol.input_slots(cell)) * sizes.hidden * (sizes.input + sizes.output)
        team.run(
            loop_gradient.backward, 2 * steps.rows.size * products, cell, sizes, bool(direction), steps.starts,
            row_bounds(self.layer, steps, self.dw.itemsize), chunk, steps.batch_size, self._terms(states), self.dw,
            zeros(max(sizes), self.dw.dtype), self.gates, states,
            loop_gradient.Gradients(
                dy._replace(start=direction * sizes.output), dx,
                Matrix(self.take("dgates", rows * width), steps.rows, 0, width),
                Matrix(self.take("doutput", steps.batch_size * sizes.hidden), steps.batch, 0, sizes.hidden), carry,
                dcells
            ),
            self.take("work", weight_gradient.work_size(width, team.wanted_size(), self.dw.itemsize)), arange(width)
        )

    def _states(self) -> loop.States:
        desc, arrays = self.desc, self.workspace.arrays
        cells = arrays[f"cell_{self.index}"] if desc.has_cell else np.empty((0,), self.dw.dtype)
        run = Run(arrays[f"hidden_l{self.layer.layer}"], cells, keeps_cells=True)
        return states_of(run, self.steps, self.layer.sizes, self.layer.direction)

    def _source(self) -> Matrix:
        """What W multiplied."""
        layer, arrays = self.layer.layer, self.workspace.arrays
        if layer == 0:
            return input_matrix(self.workspace.x, self.steps)
        if self.desc.dropout > 0:
            return input_matrix(arrays[f"input_l{layer}"], self.steps)
        return Matrix(arrays[f"hidden_l{layer - 1}"].reshape(-1), self.steps.states, 0, self.layer.sizes.input)

    def _terms(self, states: loop.States) -> weight_gradient.Terms:
        """The products of the forward pass, and room for their panels."""
        _, second = protocol.second_slots(self.layer.cell) or (0, 0)
        sources = (
            self._source(), states.hidden, self.gates._replace(start=second),
            self.gates._replace(start=self.gates.stride - self.desc.hidden_size)
        )
        parts = zip(sources, terms_of(self.desc)[self.index], weight_gradient.Terms._fields, strict=True)
        return weight_gradient.Terms(*(self._term(source, *place, name) for source, place, name in parts))

    def _term(
        self, source: Matrix, first: int, rows: np.ndarray, start: int, units: int, bias: int, name: str
    ) -> weight_gradient.Term:
        size, used = self.dw.itemsize, min(rows.size, 1)
        packed = self.take(f"packed_{name}", gemm.panel_size(rows.size, units, 1, size))
        block = self.take(f"block_{name}", used * gemm.panel_size(gemm.depth_block(size), units, 1, size))
        return weight_gradient.Term(first, Matrix(self.weights, rows, start, units), bias, source, packed, block)


class _Place(NamedTuple):
    """Where a product of the forward pass has its columns among the gates' gradients, its weights and its bias."""

    first: int
    rows: np.ndarray
    start: int
    units: int
    bias: int


@cache
def terms_of(desc: RNNDescriptor) -> tuple[tuple[_Place, ...], ...]:
    """The products of each pseudo-layer, in the order of `weight_gradient.Terms`."""
    return tuple(_places(layer, desc) for layer in layers_of(desc))


def _places(layer: Layer, desc: RNNDescriptor) -> tuple[_Place, ...]:
    cell, sizes, slots, blocks, _, _ = layer
    start = {name: block[1] for name, block in blocks.items()}
    recurrent, second = protocol.recurrent_slots(cell), protocol.second_slots(cell)[:1]

    def place(name: str, slots: tuple[int, ...], gate: int, units: int, bias: str) -> _Place:
        """The product whose gates, from `gate` on in the weights, have these slots: neighbours, in any order."""
        order = np.argsort(slots).astype(np.int64)
        rows = ((gate + order)[:, None] * sizes.hidden + np.arange(sizes.hidden)).reshape(-1)
        return _Place(min(slots, default=0), rows, start.get(name, 0), units, start.get(bias, -1))

    projection = _Place(
        (slots - 1) * sizes.hidden, arange(sizes.output), start["weight_hr"], sizes.hidden, -1
    ) if desc.projected else place("", (), 0, 0, "")
    return (
        place("weight_ih", protocol.input_slots(cell), 0, sizes.input, "bias_ih"),
        place("weight_hh", recurrent, 0, sizes.output, "bias_hh"),
        place("weight_hh", second, len(recurrent), sizes.output if second else 0, "bias_hh"),
        projection,
    )
