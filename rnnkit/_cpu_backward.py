"""The gradients of one network on NumPy arrays, pseudo-layer by pseudo-layer from the last to the first."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from rnnkit._cpu_layer import (
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
from rnnkit.kernels.tile import provide
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
    provide(w.dtype, 1)
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
            gradient = _LayerGradient(desc, workspace, memory, index, w.dtype)
            gradient.run(weights, dw, upper, lower, carry, dcells)
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

    def __init__(self, desc: RNNDescriptor, workspace: Workspace, memory: Memory, index: int, dtype: np.dtype) -> None:
        self.desc, self.workspace, self.memory, self.index, self.dtype = desc, workspace, memory, index, dtype
        self.layer, self.steps = layers_of(desc)[index], workspace.steps
        gates = workspace.arrays[f"gates_{index}"].reshape(-1)
        self.gates = Matrix(gates, self.steps.rows, 0, self.layer.columns)

    def take(self, name: str, size: int) -> np.ndarray:
        return self.memory.take(name, (size,), self.dtype)

    def run(self, w: np.ndarray, dw: np.ndarray, dy: Matrix, dx: Matrix, carry: Matrix, dcells: Matrix) -> None:
        """From dy, and the final states' gradients in carry and dcells, to dx, the initial states' and dw."""
        layer, steps, itemsize, states = self.layer, self.steps, self.dtype.itemsize, self._states()
        cell, sizes, products, direction = layer.cell, layer.sizes, layer.products, layer.direction
        width = layer.gradient_columns
        chunk = max(1, gemm.depth_block(itemsize) // max(steps.batch_size, 1))
        held = min(chunk, steps.seq_len) * steps.batch_size
        places = _places(self.desc, self.index, team.wanted_size())
        multiply_adds = steps.rows.size * products[0].rows.size * (sizes.input + sizes.output)
        team.run(
            loop_gradient.backward, layer.kind, 2 * multiply_adds, cell, sizes, bool(direction), steps.starts,
            row_bounds(layer, steps, itemsize), chunk, steps.batch_size, products, self._sources(states), w, dw,
            zeros(max(sizes), self.dtype), self.gates, states,
            loop_gradient.Gradients(
                dy._replace(start=direction * sizes.output), dx,
                Matrix(self.take("dgates", held * width), steps.rows, 0, width),
                Matrix(self.take("doutput", steps.batch_size * sizes.hidden), steps.batch, 0, sizes.hidden), carry,
                dcells
            ),
            self.take("work", places[-1]), places, arange(width)
        )

    def _states(self) -> loop.States:
        desc, arrays = self.desc, self.workspace.arrays
        cells = arrays[f"cell_{self.index}"] if desc.has_cell else np.empty((0,), self.dtype)
        run = Run(arrays[f"hidden_l{self.layer.layer}"], cells, keeps_cells=True)
        return states_of(run, self.steps, self.layer.sizes, self.layer.direction)

    def _sources(self, states: loop.States) -> tuple[Matrix, ...]:
        """What the products of the forward pass multiplied."""
        _, second = protocol.second_slots(self.layer.cell) or (0, 0)
        last = self.gates.stride - self.desc.hidden_size
        return self._source(), states.hidden, self.gates._replace(start=second), self.gates._replace(start=last)

    def _source(self) -> Matrix:
        """What W multiplied."""
        layer, arrays = self.layer.layer, self.workspace.arrays
        if layer == 0:
            return input_matrix(self.workspace.x, self.steps)
        if self.desc.dropout > 0:
            return input_matrix(arrays[f"input_l{layer}"], self.steps)
        return Matrix(arrays[f"hidden_l{layer - 1}"].reshape(-1), self.steps.states, 0, self.layer.sizes.input)


@lru_cache
def _places(desc: RNNDescriptor, index: int, threads: int) -> np.ndarray:
    layer = layers_of(desc)[index]
    return weight_gradient.places_of(layer.products, layer.gradient_columns, threads, desc.np_dtype.itemsize)
