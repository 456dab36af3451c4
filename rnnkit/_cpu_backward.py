"""The gradients of one network on NumPy arrays, from its last layers to the first."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from rnnkit._cpu_layer import Layer, arange, filled, flat, groups_of, layers_of, stacked, zeros
from rnnkit._cpu_run import Run, drop, kept_runs, states_of
from rnnkit._cpu_sharing import sharing_of
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import cell as protocol
from rnnkit.kernels import gemm, loop, loop_gradient, team, weight_gradient
from rnnkit.kernels.matrix import Matrix
from rnnkit.kernels.tile import provide
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
    dx = (np.zeros if steps.padded else np.empty)((steps.seq_len, batch, desc.input_size), w.dtype)
    upper = Matrix(
        np.empty(0, w.dtype) if dy is None else flat(dy), steps.rows, 0, desc.num_directions * desc.output_size
    )
    gradient = _Gradient(desc, workspace, memory, dx, dhx, dcx)
    for group in reversed(groups_of(desc, desc.dropout > 0)):
        upper = gradient.run(group, weights, dw, upper)
        layer = group[0].layer
        if layer and desc.dropout > 0:
            kept = workspace.arrays[f"kept_l{layer}"].reshape(-1)
            drop(upper, upper, Matrix(kept, steps.rows, 0, upper.stride), desc)
    return dx, dhx, dcx, dw


def _start(shape: tuple[int, ...], dtype: np.dtype, given: Any) -> np.ndarray:
    """A new array that the gradient of a state begins from and is carried back in."""
    return np.zeros(shape, dtype) if given is None else np.array(given, order="C").reshape(shape)


class _Gradient:
    """The backward of a network, group by group: what the kernel calls need."""

    def __init__(
        self, desc: RNNDescriptor, workspace: Workspace, memory: Memory, dx: np.ndarray, dhx: np.ndarray, dcx: Any
    ) -> None:
        self.desc, self.workspace, self.steps, self.memory = desc, workspace, workspace.steps, memory
        self.dx, self.dhx, self.dcx = dx, dhx, dcx

    def run(self, group: tuple[Layer, ...], w: np.ndarray, dw: np.ndarray, dy: Matrix) -> Matrix:
        """From dy, and the final states' gradients in dhx and dcx, to the initial states', dw, and dx, the result."""
        steps, itemsize, layer = self.steps, w.itemsize, group[0]
        sharing, is_stack = sharing_of(group, steps, itemsize), stacked(group)
        chunk = max(1, gemm.depth_block(itemsize) // max(steps.batch_size, 1))
        held, strands, work = min(chunk, steps.seq_len) * steps.batch_size, [], 0
        runs = kept_runs(self.desc, self.workspace, group)
        for number, run in enumerate(reversed(runs) if is_stack else runs):
            dx = self._input_gradient(run.layer)
            strands.append(self._strand(run, number if sharing.apart else 0, dy, dx, held))
            work += run.layer.work * steps.rows.size
            if is_stack:
                dy = dx
        team.run(
            loop_gradient.backward, layer.kind, 2 * work, layer.cell, filled(strands, layer), len(strands), is_stack,
            steps.starts, *sharing, chunk, steps.batch_size, w, dw, zeros(max(layer.sizes), w.dtype),
            arange(layer.gradient_columns)
        )
        return strands[-1 if is_stack else 0].gradients.dx

    def _input_gradient(self, layer: Layer) -> Matrix:
        """Where a pseudo-layer writes the gradient of its input; the two below and above it write elsewhere."""
        width = self.desc.layer_input_size(layer.layer)
        shape = self.steps.seq_len, self.steps.batch_size, width
        if layer.direction == 1:
            dx = self.memory.take("dinput_reverse", shape, self.dx.dtype)
        else:
            dx = self.memory.take(f"dinput_{layer.layer % 3}", shape, self.dx.dtype) if layer.layer else self.dx
        return Matrix(dx.reshape(-1), self.steps.rows, 0, width)

    def _strand(self, run: Run, room: int, dy: Matrix, dx: Matrix, held: int) -> loop_gradient.StrandBack:
        layer, steps, desc, batch = run.layer, self.steps, self.desc, self.steps.batch_size
        index, sizes, width = layer.index, layer.sizes, layer.gradient_columns
        states, places = states_of(run, steps), _places(desc, index, team.wanted_size())
        gates = Matrix(run.gates.reshape(-1), steps.rows, 0, layer.columns)
        carry = Matrix(self.dhx.reshape(-1), steps.batch, index * batch * desc.output_size, desc.output_size)
        dcells = Matrix(dy.data, steps.batch, 0, 0)
        if desc.has_cell:
            dcells = Matrix(self.dcx.reshape(-1), steps.batch, index * batch * desc.hidden_size, desc.hidden_size)
        gradients = loop_gradient.Gradients(
            dy._replace(start=run.units.start), dx,
            Matrix(self._take("dgates", held * width, room), steps.rows, 0, width),
            Matrix(self._take("doutput", batch * sizes.hidden, room), steps.batch, 0, sizes.hidden), carry, dcells
        )
        return loop_gradient.StrandBack(
            layer.direction == 1, sizes, layer.products, self._sources(run, gates, states), gates, states, gradients,
            self._take("work", places[-1], room), places
        )

    def _take(self, name: str, size: int, room: int) -> np.ndarray:
        """Memory of this name in one of the rooms: strands that are not apart work in one, after another."""
        return self.memory.take(f"{name}_{room}", (size,), self.dx.dtype)

    def _sources(self, run: Run, gates: Matrix, states: loop.States) -> tuple[Matrix, ...]:
        """What the products of the forward pass multiplied."""
        _, second = protocol.second_slots(run.layer.cell) or (0, 0)
        last = gates.stride - self.desc.hidden_size
        return run.source, states.hidden, gates._replace(start=second), gates._replace(start=last)


@lru_cache
def _places(desc: RNNDescriptor, index: int, threads: int) -> np.ndarray:
    layer = layers_of(desc)[index]
    return weight_gradient.places_of(layer.products, layer.gradient_columns, threads, desc.np_dtype.itemsize)
