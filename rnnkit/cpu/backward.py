"""The gradients of one network on NumPy arrays, from its last layers to the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.cpu.layer import DESCRIPTORS, Layer, filled, flat, groups_of, is_stack, layers_of
from rnnkit.cpu.planner import Planner
from rnnkit.cpu.rows import Part, StepRows, rows_of
from rnnkit.cpu.run import Grid, Run, drop, input_grid, kept_runs
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import loop_gradient, weight_gradient
from rnnkit.kernels.loop_gradient import Buffers, Gradients, LayerPassBack
from rnnkit.kernels.machine import team
from rnnkit.memory import Memory
from rnnkit.steps import Steps, row_numbers
from rnnkit.workspace import Workspace


def backward(
    desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, memory: Memory, dy: Any, dhy: Any, dcy: Any, dw: Any
) -> tuple:
    """The gradients, computed in the memory: dx, dhx, dcx and dw, which is added to where it is given."""
    steps = rows_of(workspace.steps, memory)
    result, planner = begin(desc, w, steps, dhy, dcy, dw), Planner(steps, w.itemsize)

    def make() -> Gradient:
        return Gradient(desc, workspace.arrays, planner, memory, groups_of(desc, desc.dropout > 0))

    key = desc, steps, planner.threads
    gradient = memory.prepared("backward", key, make) if steps.kept else make()
    gradient.run(buffers_of(w, workspace.x, dy, *result))
    return result


def buffers_of(
    w: np.ndarray, x: np.ndarray, dy: Any, dx: np.ndarray, dhx: np.ndarray, dcx: Any, dw: np.ndarray
) -> Buffers:
    """The arrays of a call, as the kernel takes them; dy and dcx may be None."""
    dx, dhx = dx.reshape(-1), dhx.reshape(-1)  # views: they are written
    dcx = dhx if dcx is None else dcx.reshape(-1)
    return Buffers(flat(w), flat(x), dx[:0] if dy is None else flat(dy), dx, dhx, dcx, dw)


def begin(desc: RNNDescriptor, w: np.ndarray, steps: Steps, dhy: Any, dcy: Any, dw: Any) -> tuple:
    """Where the gradients go: dx, dhx, dcx and dw, with what the last three begin from."""
    batch = steps.batch_size
    dw = np.zeros(w.shape, w.dtype) if dw is None else dw
    dhx = _start((desc.num_pseudo_layers, batch, desc.output_size), w.dtype, dhy)
    dcx = _start((desc.num_pseudo_layers, batch, desc.states_size), w.dtype, dcy) if desc.has_cell else None
    return (np.zeros if steps.padded else np.empty)((steps.seq_len, batch, desc.input_size), w.dtype), dhx, dcx, dw


def _start(shape: tuple[int, ...], dtype: np.dtype, given: Any) -> np.ndarray:
    """A new array that the gradient of a state begins from and is carried back in."""
    return np.zeros(shape, dtype) if given is None else np.array(given, order="C").reshape(shape)


class Chain(NamedTuple):
    """The layers from `lowest` on, whose gradient is taken segment by segment of the sequence: all of them keep their
    packed weights, which the one that is worked on first, the last, packs."""

    lowest: int
    packs: bool


class ReadyGradient(NamedTuple):
    """A group of pseudo-layers that is ready to run backward, as `run.ReadyGroup` is forward."""

    layers: tuple[Layer, ...]  # in the order of the passes: of a stack the upper first
    calls: list[Callable[[Buffers], None]]  # of the kernel, the last steps first
    dx: list[Grid]  # of each pass


class Gradient:
    """The backward of a network, or of a segment of a chain of its layers, ready to run: all that the kernel calls need
    but the `Buffers` of the call.

    Attributes
    ----------
    dx : Grid
        The gradient of its input, of two directions the reverse one's; without data it is that of the call.
    """

    def __init__(
        self, desc: RNNDescriptor, arrays: dict[str, Any], planner: Planner, memory: Memory,
        groups: tuple[tuple[Layer, ...], ...], chain: Chain | None = None,
    ) -> None:
        self._desc, self._arrays, self._steps, self._planner = desc, arrays, planner.steps, planner
        self._chain, self._lowest, self._packs = chain, *(chain or (0, True))
        self._later = np.empty(0, desc.np_dtype)  # in place of each of the buffers
        self._groups, dy = [], Grid(self._later, 0, desc.num_directions * desc.output_size)
        for group in reversed(groups):
            self._groups.append(self._ready(group, dy, memory))
            dy = self._groups[-1].dx[-1 if is_stack(group) else 0]
        self.dx = self._groups[-1].dx[-1]

    def _ready(self, group: tuple[Layer, ...], dy: Grid, memory: Memory) -> ReadyGradient:
        """Lay out a group: dy is where the gradient of its output will stand. It works in the memory."""
        steps, layer, backs, calls = self._steps, group[0], [], []
        schedule = self._planner.backward(group)
        spans = self._planner.calls(group, schedule)
        runs = kept_runs(self._desc, self._arrays, group)
        for number, run in enumerate(reversed(runs) if is_stack(group) else runs):
            # Passes that do not run at once share a buffer; but packed weights are there for all calls.
            place = number if schedule.split or len(spans) > 1 else 0
            buffer = run.layer.layer - self._lowest if self._chain else place
            backs.append(self._back(run, place, buffer, dy, schedule.buffered_steps * steps.batch_size, memory))
            if is_stack(group):
                dy = backs[-1].dx
        zeros, numbers = np.zeros(max(layer.sizes), self._later.dtype), row_numbers(layer.gradient_columns)
        like = Buffers(*[self._later] * len(Buffers._fields))
        for start, stop in spans:  # counted from the end
            parts = [back.run.part(steps, steps.seq_len - stop, steps.seq_len - start) for back in backs]
            work = sum(2 * back.run.layer.work for back in backs) * (stop - start) * steps.batch_size
            passes = [back.layer_pass(part, steps) for back, part in zip(backs, parts, strict=True)]
            arguments = layer.cell, filled(passes, layer), schedule, self._packs and not calls, zeros, numbers
            calls.append(team.bound(loop_gradient.backward, work, like, *arguments))
        return ReadyGradient(tuple(back.run.layer for back in backs), calls, [back.dx for back in backs])

    def run(self, buffers: Buffers) -> None:
        """Through all groups, from the highest to the lowest."""
        for ready in self._groups:
            for call in ready.calls:
                call(buffers)
            lowest, dx = ready.layers[-1].layer, ready.dx
            if len(dx) == 2 and not is_stack(ready.layers):
                dx = [grid if grid.data.size else grid._replace(data=buffers.dx) for grid in dx]
                add(*dx, self._steps)
                dx = dx[:1]
            if lowest > self._lowest:
                self.drop(dx[-1], lowest)

    def drop(self, dx: Grid, layer: int) -> None:
        """Take the gradient of a layer's input through dropout, where there is any."""
        if self._desc.dropout > 0:
            drop(dx, dx, input_grid(self._arrays[f"kept_l{layer}"]), self._steps, self._desc)

    def _input_gradient(self, layer: Layer, memory: Memory) -> Grid:
        """Where a pseudo-layer writes the gradient of its input; the two below and above it write elsewhere."""
        width = self._desc.layer_input_size(layer.layer)
        if layer.direction == 0 and layer.layer == self._lowest:
            return Grid(self._later, 0, width)
        name = "dinput_reverse" if layer.direction == 1 else f"dinput_{layer.layer % 3}"
        shape = self._steps.seq_len, self._steps.batch_size, width
        return Grid(memory.take(name, shape, self._later.dtype).reshape(-1), 0, width)

    def _back(self, run: Run, number: int, buffer: int, dy: Grid, rows: int, memory: Memory) -> RunBack:
        """A pseudo-layer with what flows back through it, by the number of what it works in and of the buffer that has
        its packed weights; `rows` are those of the gates of a chunk."""
        layer, desc, batch = run.layer, self._desc, self._steps.batch_size
        sizes, width, index = layer.sizes, layer.gradient_columns, layer.index

        def take(name: str, size: int, number: int = number) -> np.ndarray:
            return memory.take(f"{name}_{number}", (size,), self._later.dtype)

        dhidden = Grid(self._later, index * batch * desc.output_size, desc.output_size)
        dcells = Grid(self._later, 0, 0)
        if desc.has_cell:
            dcells = Grid(self._later, index * batch * desc.states_size, desc.states_size)
        offsets = _offsets(desc, index, self._planner.threads)
        dgates = Grid(take("dgates", rows * width), 0, width)
        doutput = Grid(take("doutput", batch * sizes.hidden), 0, sizes.hidden)
        dy, dx = dy._replace(start=run.units.start), self._input_gradient(layer, memory)
        return RunBack(run, dy, dx, dgates, doutput, dhidden, dcells, take("buffer", offsets[-1], buffer), offsets)


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

    def layer_pass(self, part: Part, steps: StepRows) -> LayerPassBack:
        """A part of the steps, for a kernel."""
        behind = Grid(self.gates.data, -part.start * steps.batch_size * self.gates.stride, self.gates.stride)
        gradients = Gradients(
            self.dy.at(part.rows), self.dx.at(part.rows), behind.at(part.rows), self.output.at(part.batch),
            self.hidden.at(part.batch), self.cells.at(part.batch)
        )
        forward = self.run.layer_pass(part, steps)
        return LayerPassBack(forward, self.run.layer.products, gradients, self.buffer, self.offsets)


def add(target: Grid, addend: Grid, steps: StepRows) -> None:
    """target += addend, the valid rows."""
    for part in steps.parts():
        work = part.count * target.stride
        team.run(loop_gradient.add_rows, work, target.at(part.rows), addend.at(part.rows), part.count)


@lru_cache(4 * DESCRIPTORS)
def _offsets(desc: RNNDescriptor, index: int, threads: int) -> np.ndarray:
    layer = layers_of(desc)[index]
    return weight_gradient.offsets_of(layer.products, layer.gradient_columns, threads, desc.np_dtype.itemsize)
