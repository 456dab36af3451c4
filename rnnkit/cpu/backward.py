"""The gradients of one network on NumPy arrays, from its last layers to the first."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.cpu.layer import DESCRIPTORS, Layer, filled, flat, groups_of, layers_of, stacked
from rnnkit.cpu.planner import sharing_of
from rnnkit.cpu.run import Grid, Run, calls, drop, input_grid, kept_runs
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import loop_gradient, weight_gradient
from rnnkit.kernels.machine import gemm, team
from rnnkit.kernels.machine.matrix import Matrix
from rnnkit.kernels.machine.tile import provide
from rnnkit.steps import Part, Steps, row_numbers
from rnnkit.workspace import Memory, Workspace


def backward(desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, dy: Any, dhy: Any, dcy: Any, dw: Any) -> tuple:
    """Gradients of what `forward` left in the workspace: dx, dhx, dcx and dw, which is added to where it is given."""
    call = object()
    try:
        return _backward(desc, w, workspace, workspace.memory.borrow(call), dy, dhy, dcy, dw)
    finally:
        workspace.memory.borrowers.discard(call)


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
    upper = Grid(np.empty(0, w.dtype) if dy is None else flat(dy), 0, desc.num_directions * desc.output_size)
    gradient = _Gradient(desc, workspace, memory, dx, dhx, dcx)
    for group in reversed(groups_of(desc, desc.dropout > 0)):
        upper = gradient.run(group, weights, dw, upper)
        layer = group[0].layer
        if layer and desc.dropout > 0:
            drop(upper, upper, input_grid(workspace.arrays[f"kept_l{layer}"]), steps, desc)
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

    def run(self, group: tuple[Layer, ...], w: np.ndarray, dw: np.ndarray, dy: Grid) -> Grid:
        """From dy, and the final states' gradients in dhx and dcx, to the initial states', dw, and dx, the result."""
        steps, itemsize, layer = self.steps, w.itemsize, group[0]
        sharing, is_stack = sharing_of(group, steps, itemsize), stacked(group)
        chunk = max(1, gemm.depth_block(itemsize) // max(steps.batch_size, 1))
        runs, spans, flows = kept_runs(self.desc, self.workspace, group), calls(group, steps, chunk), []
        for number, run in enumerate(reversed(runs) if is_stack else runs):
            held = min(chunk, steps.seq_len) * steps.batch_size
            # Strands that are not apart work in one room, after another; but packed weights are there for all calls.
            flows.append(self._flow(run, number if sharing.apart or len(spans) > 1 else 0, dy, held))
            if is_stack:
                dy = flows[-1].dx
        zeros, columns = np.zeros(max(layer.sizes), w.dtype), row_numbers(layer.gradient_columns)
        for first, last in spans:  # counted from the end
            strands, work = [], 0
            for flow in flows:
                part = flow.run.part(steps, steps.seq_len - last, steps.seq_len - first)
                strands.append(flow.strand(part, steps))
                work += 2 * flow.run.layer.work * part.count
            team.run(
                loop_gradient.backward, layer.kind, work, layer.cell, filled(strands, layer), len(strands), is_stack,
                *sharing, chunk, steps.batch_size, first == 0, w, dw, zeros, columns
            )
        if len(flows) == 2 and not is_stack:
            _add(flows[0].dx, flows[1].dx, steps, layer)
        return flows[-1 if is_stack else 0].dx

    def _input_gradient(self, layer: Layer) -> Grid:
        """Where a pseudo-layer writes the gradient of its input; the two below and above it write elsewhere."""
        width = self.desc.layer_input_size(layer.layer)
        shape = self.steps.seq_len, self.steps.batch_size, width
        if layer.direction == 1:
            dx = self.memory.take("dinput_reverse", shape, self.dx.dtype)
        else:
            dx = self.memory.take(f"dinput_{layer.layer % 3}", shape, self.dx.dtype) if layer.layer else self.dx
        return Grid(dx.reshape(-1), 0, width)

    def _flow(self, run: Run, room: int, dy: Grid, held: int) -> _Flow:
        """What flows back through a pseudo-layer."""
        layer, desc, batch = run.layer, self.desc, self.steps.batch_size
        sizes, width, index = layer.sizes, layer.gradient_columns, layer.index

        def take(name: str, size: int) -> np.ndarray:
            return self.memory.take(f"{name}_{room}", (size,), self.dx.dtype)

        carry = Grid(self.dhx.reshape(-1), index * batch * desc.output_size, desc.output_size)
        dcells = Grid(dy.data, 0, 0)
        if desc.has_cell:
            dcells = Grid(self.dcx.reshape(-1), index * batch * desc.hidden_size, desc.hidden_size)
        places = _places(desc, index, team.wanted_size())
        return _Flow(
            run, dy._replace(start=run.units.start), self._input_gradient(layer),
            Grid(take("dgates", held * width), 0, width), Grid(take("doutput", batch * sizes.hidden), 0, sizes.hidden),
            carry, dcells, take("work", places[-1]), places
        )


class _Flow(NamedTuple):
    """What flows back through a pseudo-layer: the gradients of its output, input and gates (of a chunk of steps), of a
    step's output units, hidden states and cells; and room to work in."""

    run: Run
    dy: Grid
    dx: Grid
    gates: Grid
    output: Grid
    hidden: Grid
    cells: Grid
    room: np.ndarray
    places: np.ndarray

    def strand(self, part: Part, steps: Steps) -> loop_gradient.StrandBack:
        """A part of the steps, for a kernel."""
        run, layer = self.run, self.run.layer
        gates, states = run.gate_rows(part, steps, steps.batch_size), run.states(part)
        behind = Grid(self.gates.data, -part.first * steps.batch_size * self.gates.stride, self.gates.stride)
        gradients = loop_gradient.Gradients(
            self.dy.at(part.rows), self.dx.at(part.rows), behind.at(part.rows), self.output.at(part.batch),
            self.hidden.at(part.batch), self.cells.at(part.batch)
        )
        # What the products of the forward pass multiplied.
        declaration, last = layer.cell.declaration, gates.stride - layer.sizes.hidden
        second = declaration.columns.index(declaration.multiplied) * layer.sizes.hidden if declaration.multiplied else 0
        sources = run.source.at(part.rows), states.hidden, _moved(gates, second), _moved(gates, last)
        return loop_gradient.StrandBack(
            layer.direction == 1, layer.sizes, part.starts, layer.products, sources, gates, states, gradients,
            self.room, self.places
        )


def _moved(matrix: Matrix, columns: int) -> Matrix:
    return matrix._replace(start=matrix.start + columns)


def _add(target: Grid, addend: Grid, steps: Steps, layer: Layer) -> None:
    """target += addend, the valid rows."""
    for part in steps.parts():
        work = part.count * target.stride
        team.run(loop_gradient.add_rows, layer.kind, work, target.at(part.rows), addend.at(part.rows), part.count)


@lru_cache(4 * DESCRIPTORS)
def _places(desc: RNNDescriptor, index: int, threads: int) -> np.ndarray:
    layer = layers_of(desc)[index]
    return weight_gradient.places_of(layer.products, layer.gradient_columns, threads, desc.np_dtype.itemsize)
