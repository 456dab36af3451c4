"""The gradients of one network on NumPy arrays, from its last layers to the first."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.cpu.layer import DESCRIPTORS, Layer, filled, flat, groups_of, is_stack, layers_of
from rnnkit.cpu.planner import Planner
from rnnkit.cpu.run import Grid, Run, drop, input_grid, kept_runs
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import loop_gradient, weight_gradient
from rnnkit.kernels.loop_gradient import Gradients, LayerPassBack, WeightBuffers
from rnnkit.kernels.machine import team
from rnnkit.kernels.machine.tiles import ensure_compiled
from rnnkit.steps import Part, Steps, row_numbers
from rnnkit.workspace import Memory, Workspace


def backward(
    desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, memory: Memory, dy: Any, dhy: Any, dcy: Any, dw: Any
) -> tuple:
    """The gradients, computed in the memory: dx, dhx, dcx and dw, which is added to where it is given."""
    dx, dhx, dcx, dw = result = begin(desc, w, workspace.steps, dhy, dcy, dw)
    gradient = Gradient(workspace, Planner(workspace.steps, w.itemsize), memory, dx, dhx, dcx)
    gradient.through_all(groups_of(desc, desc.dropout > 0), WeightBuffers(flat(w), dw), gradient.output(dy))
    return result


def begin(desc: RNNDescriptor, w: np.ndarray, steps: Steps, dhy: Any, dcy: Any, dw: Any) -> tuple:
    """Where the gradients go: dx, dhx, dcx and dw, with what the last three begin from."""
    batch = steps.batch_size
    dw = np.zeros(w.shape, w.dtype) if dw is None else dw
    dhx = _start((desc.num_pseudo_layers, batch, desc.output_size), w.dtype, dhy)
    dcx = _start((desc.num_pseudo_layers, batch, desc.states_size), w.dtype, dcy) if desc.has_cell else None
    ensure_compiled(w.dtype, 1)
    return (np.zeros if steps.padded else np.empty)((steps.seq_len, batch, desc.input_size), w.dtype), dhx, dcx, dw


def _start(shape: tuple[int, ...], dtype: np.dtype, given: Any) -> np.ndarray:
    """A new array that the gradient of a state begins from and is carried back in."""
    return np.zeros(shape, dtype) if given is None else np.array(given, order="C").reshape(shape)


class Chain(NamedTuple):
    """The layers from `lowest` on, whose gradient is taken segment by segment of the sequence: all of them keep their
    packed weights, which the one that is worked on first, the last, packs."""

    lowest: int
    packs: bool


class Gradient:
    """The backward of a network, or of a segment of a chain of its layers, of whose input dx is the gradient, group by
    group: what the kernel calls need."""

    def __init__(
        self, workspace: Workspace, planner: Planner, memory: Memory, dx: np.ndarray, dhx: np.ndarray, dcx: Any,
        chain: Chain | None = None,
    ) -> None:
        self.desc, self.workspace, self.steps, self.memory = workspace.desc, workspace, workspace.steps, memory
        self.dx, self.dhx, self.dcx, self.planner = dx, dhx, dcx, planner
        self.chain, self.lowest, self.packs = chain, *(chain or (0, True))

    def output(self, dy: Any) -> Grid:
        """The gradient of a layer's outputs (T, N, D*P), None for zeros."""
        width = self.desc.num_directions * self.desc.output_size
        return Grid(np.empty(0, self.dx.dtype) if dy is None else flat(dy), 0, width)

    def through_all(self, groups: tuple[tuple[Layer, ...], ...], weights: WeightBuffers, dy: Grid) -> Grid:
        """Through all groups, from the highest to the lowest; returns the gradient of its input."""
        for group in reversed(groups):
            dy = self.through(group, weights, dy)
            if group[0].layer > self.lowest:
                self.drop(dy, group[0].layer)
        return dy

    def drop(self, dx: Grid, layer: int) -> None:
        """Take the gradient of a layer's input through dropout, where there is any."""
        if self.desc.dropout > 0:
            drop(dx, dx, input_grid(self.workspace.arrays[f"kept_l{layer}"]), self.steps, self.desc)

    def through(self, group: tuple[Layer, ...], weights: WeightBuffers, dy: Grid) -> Grid:
        """From dy, and the final states' gradients in dhx and dcx, to the initial states', dw, and dx, the result."""
        steps, layer, backs = self.steps, group[0], []
        schedule = self.planner.backward(group)
        calls, runs = self.planner.calls(group, schedule), kept_runs(self.desc, self.workspace.x, self.workspace, group)
        for number, run in enumerate(reversed(runs) if is_stack(group) else runs):
            # Passes that do not run at once share a buffer; but packed weights are there for all calls.
            own = number if schedule.split or len(calls) > 1 else 0
            buffer = run.layer.layer - self.lowest if self.chain else own
            backs.append(self._back(run, own, buffer, dy, schedule.buffered_steps * steps.batch_size))
            if is_stack(group):
                dy = backs[-1].dx
        zeros, numbers = np.zeros(max(layer.sizes), self.dx.dtype), row_numbers(layer.gradient_columns)
        for start, stop in calls:  # counted from the end
            passes, work = [], 0
            for back in backs:
                part = back.run.part(steps, steps.seq_len - stop, steps.seq_len - start)
                passes.append(back.layer_pass(part, steps))
                work += 2 * back.run.layer.work * part.count
            arguments = layer.cell, filled(passes, layer), schedule, self.packs and start == 0, weights, zeros, numbers
            team.run(loop_gradient.backward, layer.kind, work, *arguments)
        if len(backs) == 2 and not is_stack(group):
            add(backs[0].dx, backs[1].dx, steps, layer)
        return backs[-1 if is_stack(group) else 0].dx

    def _input_gradient(self, layer: Layer) -> Grid:
        """Where a pseudo-layer writes the gradient of its input; the two below and above it write elsewhere."""
        width = self.desc.layer_input_size(layer.layer)
        shape = self.steps.seq_len, self.steps.batch_size, width
        if layer.direction == 1:
            dx = self.memory.take("dinput_reverse", shape, self.dx.dtype)
        else:
            inner = layer.layer > self.lowest
            dx = self.memory.take(f"dinput_{layer.layer % 3}", shape, self.dx.dtype) if inner else self.dx
        return Grid(dx.reshape(-1), 0, width)

    def _back(self, run: Run, number: int, buffer: int, dy: Grid, rows: int) -> RunBack:
        """A pseudo-layer with what flows back through it, by the number of what it works in and of the buffer that has
        its packed weights; `rows` are those of the gates of a chunk."""
        layer, desc, batch = run.layer, self.desc, self.steps.batch_size
        sizes, width, index = layer.sizes, layer.gradient_columns, layer.index

        def take(name: str, size: int, number: int = number) -> np.ndarray:
            return self.memory.take(f"{name}_{number}", (size,), self.dx.dtype)

        dhidden = Grid(self.dhx.reshape(-1), index * batch * desc.output_size, desc.output_size)
        dcells = Grid(dy.data, 0, 0)
        if desc.has_cell:
            dcells = Grid(self.dcx.reshape(-1), index * batch * desc.states_size, desc.states_size)
        offsets = _offsets(desc, index, self.planner.threads)
        dgates = Grid(take("dgates", rows * width), 0, width)
        doutput = Grid(take("doutput", batch * sizes.hidden), 0, sizes.hidden)
        return RunBack(
            run, dy._replace(start=run.units.start), self._input_gradient(layer), dgates, doutput, dhidden, dcells,
            take("buffer", offsets[-1], buffer), offsets
        )


class RunBack(NamedTuple):
    """A pseudo-layer with what flows back through it: the gradients of its output, input and gates (of a chunk of
    steps), of a step's output units, hidden states and cells; and a buffer to work in."""

    run: Run
    dy: Grid
    dx: Grid
    gates: Grid
    output: Grid
    hidden: Grid
    cells: Grid
    buffer: np.ndarray
    offsets: np.ndarray

    def layer_pass(self, part: Part, steps: Steps) -> LayerPassBack:
        """A part of the steps, for a kernel."""
        behind = Grid(self.gates.data, -part.start * steps.batch_size * self.gates.stride, self.gates.stride)
        gradients = Gradients(
            self.dy.at(part.rows), self.dx.at(part.rows), behind.at(part.rows), self.output.at(part.batch),
            self.hidden.at(part.batch), self.cells.at(part.batch)
        )
        forward = self.run.layer_pass(part, steps)
        return LayerPassBack(forward, self.run.layer.products, gradients, self.buffer, self.offsets)


def add(target: Grid, addend: Grid, steps: Steps, layer: Layer) -> None:
    """target += addend, the valid rows."""
    for part in steps.parts():
        work = part.count * target.stride
        team.run(loop_gradient.add_rows, layer.kind, work, target.at(part.rows), addend.at(part.rows), part.count)


@lru_cache(4 * DESCRIPTORS)
def _offsets(desc: RNNDescriptor, index: int, threads: int) -> np.ndarray:
    layer = layers_of(desc)[index]
    return weight_gradient.offsets_of(layer.products, layer.gradient_columns, threads, desc.np_dtype.itemsize)
