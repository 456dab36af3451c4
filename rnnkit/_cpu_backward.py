"""The gradients of one network on NumPy arrays, layer by layer from the last to the first."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from rnnkit._cpu_layer import (
    arange,
    drop,
    flat,
    input_matrix,
    kept_run,
    layers_of,
    split,
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
        _LayerGradient(desc, workspace, memory, layer, w.dtype).run(weights, dw, upper, lower, dhx, dcx)
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
    """The backward of one layer: what its one kernel call needs."""

    def __init__(self, desc: RNNDescriptor, workspace: Workspace, memory: Memory, layer: int, dtype: np.dtype) -> None:
        self.desc, self.workspace, self.memory, self.layer, self.dtype = desc, workspace, memory, layer, dtype
        self.directions, self.steps = layers_of(desc)[layer], workspace.steps
        self.done = kept_run(desc, workspace.arrays, layer)

    def take(self, name: str, size: int, direction: int) -> np.ndarray:
        """Memory of this name for one direction."""
        return self.memory.take(f"{name}_{direction}", (size,), self.dtype)

    def run(self, w: np.ndarray, dw: np.ndarray, dy: Matrix, dx: Matrix, dhx: np.ndarray, dcx: Any) -> None:
        """From dy, and the final states' gradients in dhx and dcx, to dx, the initial states' and dw."""
        steps, itemsize, layer = self.steps, self.dtype.itemsize, self.directions[0]
        sizes, width, count = layer.sizes, layer.gradient_columns, len(self.directions)
        chunk = max(1, gemm.depth_block(itemsize) // max(steps.batch_size, 1))
        places = _places(self.desc, self.layer, team.wanted_size())
        multiply_adds = steps.rows.size * layer.products[0].rows.size * (sizes.input + sizes.output)
        held = min(chunk, steps.seq_len) * steps.batch_size
        source = self._source()
        directions = tuple(self._direction(index, source, dy, dx, dhx, dcx, held, places) for index in range(count))
        team.run(
            loop_gradient.backward, layer.kind, 2 * count * multiply_adds, layer.cell, sizes, directions,
            steps.starts, *split(self.directions, steps, itemsize), chunk, steps.batch_size, w, dw,
            zeros(max(sizes), self.dtype), places, arange(width)
        )

    def _direction(
        self, direction: int, source: Matrix, dy: Matrix, dx: Matrix, dhx: np.ndarray, dcx: Any, held: int,
        places: np.ndarray
    ) -> loop_gradient.DirectionBack:
        steps, layer, desc = self.steps, self.directions[direction], self.desc
        sizes, width, batch = layer.sizes, layer.gradient_columns, steps.batch_size
        index = self.layer * desc.num_directions + direction
        states = states_of(self.done, steps, sizes, direction)
        gates = Matrix(self.done.gates[direction].reshape(-1), steps.rows, 0, layer.columns)
        carry = Matrix(dhx.reshape(-1), steps.batch, index * batch * desc.output_size, desc.output_size)
        dcells = Matrix(dy.data, steps.batch, 0, 0)
        if desc.has_cell:
            dcells = Matrix(dcx.reshape(-1), steps.batch, index * batch * desc.hidden_size, desc.hidden_size)
        if direction == 1:
            dx = dx._replace(data=self.memory.take("dinput_reverse", dx.data.shape, self.dtype))
        gradients = loop_gradient.Gradients(
            dy._replace(start=direction * sizes.output), dx,
            Matrix(self.take("dgates", held * width, direction), steps.rows, 0, width),
            Matrix(self.take("doutput", batch * sizes.hidden, direction), steps.batch, 0, sizes.hidden), carry, dcells
        )
        return loop_gradient.DirectionBack(
            direction == 1, layer.products, self._sources(source, gates, states), gates, states, gradients,
            self.take("work", places[-1], direction)
        )

    def _sources(self, source: Matrix, gates: Matrix, states: loop.States) -> tuple[Matrix, ...]:
        """What the products of the forward pass multiplied."""
        _, second = protocol.second_slots(self.directions[0].cell) or (0, 0)
        last = gates.stride - self.desc.hidden_size
        return source, states.hidden, gates._replace(start=second), gates._replace(start=last)

    def _source(self) -> Matrix:
        """What W multiplied."""
        layer, arrays = self.layer, self.workspace.arrays
        if layer == 0:
            return input_matrix(self.workspace.x, self.steps)
        if self.desc.dropout > 0:
            return input_matrix(arrays[f"input_l{layer}"], self.steps)
        return Matrix(arrays[f"hidden_l{layer - 1}"].reshape(-1), self.steps.states, 0, self.directions[0].sizes.input)


@lru_cache
def _places(desc: RNNDescriptor, layer: int, threads: int) -> np.ndarray:
    layer = layers_of(desc)[layer][0]
    return weight_gradient.places_of(layer.products, layer.gradient_columns, threads, desc.np_dtype.itemsize)
