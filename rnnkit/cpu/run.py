"""Running pseudo-layers on NumPy arrays: what they read, what they write, and the calls of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.random  # NumPy would import it on first use: in the middle of a call, where a fork might come

from rnnkit.cpu.layer import Layer, filled, flat, is_stack
from rnnkit.cpu.planner import Planner
from rnnkit.cpu.rows import Index, Part, Rows, StepRows
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import dropout
from rnnkit.kernels.loop import LayerPass, Schedule, States, forward
from rnnkit.kernels.machine import team
from rnnkit.kernels.machine.matrix import Matrix
from rnnkit.kernels.rows import clear_padding
from rnnkit.workspace import Workspace

_DRAWS = 8  # float32 numbers that Philox makes of one value of its counter


class Grid(NamedTuple):
    """A flat array in rows: row r stands at data[start + r*stride:]."""

    data: np.ndarray
    start: int
    stride: int

    def at(self, rows: Rows) -> Matrix:
        """The rows of these numbers, for a kernel."""
        return Matrix(self.data, rows.numbers, self.start + rows.shift * self.stride, self.stride)


class Run(NamedTuple):
    """A pseudo-layer with what it reads and what it writes: hidden states (T + D, N, D*P), gates (steps that are
    buffered, N, columns) and cells (T + D, N, H), or (2, N, H) where they are not kept (`passing`)."""

    layer: Layer
    source: Grid
    hidden: np.ndarray
    gates: np.ndarray
    cells: np.ndarray
    passing: bool

    @property
    def units(self) -> slice:
        """Its columns of the hidden states."""
        size = self.layer.sizes.output
        return slice(self.layer.direction * size, (self.layer.direction + 1) * size)

    def part(self, steps: StepRows, start: int, stop: int) -> Part:
        """The steps that come start:stop on its way through the sequence."""
        if self.layer.direction == 1:
            start, stop = steps.seq_len - stop, steps.seq_len - start
        return steps.part(start, stop)

    def ends(self, steps: StepRows) -> tuple[Index, Index, Index, Index]:
        """Where the initial and the final hidden state, the initial and the final cell stand."""
        direction = self.layer.direction
        hidden = steps.initial[direction], steps.final[direction]
        cells = (steps.passing_ends if direction == 0 else steps.passing_ends[::-1]) if self.passing else hidden
        return *hidden, *cells

    def layer_pass(self, part: Part, steps: StepRows) -> LayerPass:
        """A part of the steps, for a kernel. Of the gates there are those of all steps, or from the part's first on."""
        layer, width = self.layer, self.layer.columns
        start = 0 if len(self.gates) == steps.seq_len else -part.start * steps.batch_size * width
        gates = Grid(self.gates.ravel(), start, width).at(part.rows)
        x, states = self.source.at(part.rows), self._states(part)
        return LayerPass(layer.direction == 1, layer.sizes, part.starts, x, layer.offsets, gates, states)

    def _states(self, part: Part) -> States:
        """The states before and after each step of a part."""
        direction, stride = self.layer.direction, self.hidden.shape[2]
        hidden = Grid(self.hidden.ravel(), self.units.start, stride)
        cells = Grid(self.cells.ravel(), 0, self.cells.shape[-1])
        before, after = part.passing if direction == 0 else part.passing[::-1]
        if not self.passing:
            before, after = part.previous[direction], part.states
        return States(
            hidden.at(part.previous[direction]), hidden.at(part.states), cells.at(before), cells.at(after)
        )


def kept_runs(desc: RNNDescriptor, arrays: dict[str, Any], group: tuple[Layer, ...]) -> list[Run]:
    """A group of pseudo-layers in training: the places in the workspace's arrays, which backward reads again."""
    runs = []
    for layer in group:
        if not runs or is_stack(group):  # both directions read one source: what is to be copied is copied once
            source = _kept_source(desc, arrays, layer.layer)
        cells = arrays[f"cell_{layer.index}"] if desc.has_cell else np.empty(0, desc.np_dtype)
        hidden, gates = arrays[f"hidden_l{layer.layer}"], arrays[f"gates_{layer.index}"]
        runs.append(Run(layer, source, hidden, gates, cells, passing=False))
    return runs


def _kept_source(desc: RNNDescriptor, arrays: dict[str, Any], layer: int) -> Grid:
    """What W of a layer multiplies: the input, or the outputs of the layer below as dropout left them."""
    if layer == 0:
        return input_of_call(desc)
    return input_grid(arrays[f"input_l{layer}"]) if desc.dropout > 0 else outputs_of(arrays[f"hidden_l{layer - 1}"])


class BoundaryStates(NamedTuple):
    """States of all pseudo-layers: hx and cx, None for zeros, and where hy and cy go; cy is None without cells."""

    hx: Any
    cx: Any
    hy: np.ndarray
    cy: Any


def boundary_states(desc: RNNDescriptor, hx: Any, cx: Any, batch_size: int) -> BoundaryStates:
    count, dtype = desc.num_pseudo_layers, desc.np_dtype
    hy = np.empty((count, batch_size, desc.output_size), dtype)
    cy = np.empty((count, batch_size, desc.states_size), dtype) if desc.has_cell else None
    return BoundaryStates(hx, cx, hy, cy)


class ReadyGroup(NamedTuple):
    """A group of pseudo-layers that is ready to run: what follows from the sizes and from where its arrays are."""

    runs: Sequence[Run]
    ends: list[tuple[Index, Index, Index, Index]]  # of each run, `Run.ends`, the hidden states' with their columns
    calls: list[Callable[[np.ndarray], None]]  # of the kernel, on the flat input


def ready_group(runs: Sequence[Run], planner: Planner, schedule: Schedule, packed: Any) -> ReadyGroup:
    """Lay out the kernel calls of a group with these weights, in the order in which they run."""
    steps, group, ends, calls = planner.steps, [run.layer for run in runs], [], []
    layer, zeros = group[0], np.zeros(group[0].sizes.hidden, runs[0].hidden.dtype)
    flat_input = np.empty(0, zeros.dtype)  # such as each call gives
    for run in runs:
        initial, final, *cells = run.ends(steps)
        ends.append(((*initial, run.units), (*final, run.units), *cells))
    for start, stop in planner.calls(group, schedule):
        parts = [run.part(steps, start, stop) for run in runs]
        work = sum(run.layer.work for run in runs) * (stop - start) * steps.batch_size
        passes = [run.layer_pass(part, steps) for run, part in zip(runs, parts, strict=True)]
        arguments = layer.cell, filled(passes, layer), schedule, packed, zeros
        calls.append(team.bound(forward, work, flat_input, *arguments))
    return ReadyGroup(runs, ends, calls)


def run_group(ready: ReadyGroup, states: BoundaryStates, x: np.ndarray) -> None:
    """Run a group of pseudo-layers over all steps of the flat input x, from their initial to their final states."""
    runs, ends, calls = ready
    for run, (initial, _, initial_cells, _) in zip(runs, ends, strict=True):
        run.hidden[initial] = 0 if states.hx is None else states.hx[run.layer.index]
        if states.cy is not None:
            run.cells[initial_cells] = 0 if states.cx is None else states.cx[run.layer.index]
    for call in calls:
        call(x)
    for run, (_, final, _, final_cells) in zip(runs, ends, strict=True):
        states.hy[run.layer.index] = run.hidden[final]
        if states.cy is not None:
            states.cy[run.layer.index] = run.cells[final_cells]


def ready_to_train(
    groups: Sequence[tuple[Layer, ...]], planner: Planner, workspace: Workspace, packed: np.ndarray
) -> tuple[ReadyGroup, ...]:
    """Groups of pseudo-layers that write into the workspace's arrays."""
    ready = []
    for group in groups:
        runs = kept_runs(workspace.desc, workspace.arrays, group)
        ready.append(ready_group(runs, planner, planner.forward(group, keeps_gates=True), packed))
    return tuple(ready)


def input_of_call(desc: RNNDescriptor) -> Grid:
    """The input, which each call gives the kernel anew: what is laid out for a size serves other calls, too."""
    return Grid(np.empty(0, desc.np_dtype), 0, desc.input_size)


def train_groups(
    ready: Sequence[ReadyGroup], states: BoundaryStates, workspace: Workspace, steps: StepRows, x: np.ndarray,
    first_step: int = 0,
) -> None:
    """Run groups of pseudo-layers on the flat x, from the lowest to the highest, and fill the workspace.

    The first of its `steps` is the sequence's `first_step`, from where on dropout's masks are drawn.
    """
    for group in ready:
        layer = group.runs[0].layer.layer
        if layer and workspace.desc.dropout > 0:
            _drop_outputs(workspace, steps, layer, first_step)
        run_group(group, states, x)


def _drop_outputs(workspace: Workspace, steps: StepRows, layer: int, first_step: int) -> None:
    """Write what a layer reads where outputs of the layer below are dropped."""
    desc, below = workspace.desc, workspace.arrays[f"hidden_l{layer - 1}"]
    kept, dropped = workspace.arrays[f"kept_l{layer}"], workspace.arrays[f"input_l{layer}"]
    # One Philox stream a layer: NumPy's counter-based generator, so that the seed alone decides about every bit.
    blocks, numbers = divmod(first_step * steps.batch_size * kept.shape[2], _DRAWS)
    stream = np.random.Generator(np.random.Philox(key=workspace.seed, counter=[blocks, 0, 0, layer]))
    stream.random(numbers, dtype=np.float32)
    draws = workspace.memory.take("draws", kept.shape, np.dtype(np.float32))
    stream.random(dtype=np.float32, out=draws)
    np.greater_equal(draws, desc.dropout, out=kept)
    drop(outputs_of(below), input_grid(dropped), input_grid(kept), steps, desc)


def ready_to_clear(arrays: Iterable[np.ndarray], steps: StepRows, first: int) -> list[Callable[[], None]]:
    """Lay out the calls that zero what lies beyond each sequence's length; step t of the arrays stands at t + first."""
    calls = []
    for array in arrays if steps.padded else ():
        _, batch_size, width = array.shape
        grid = Grid(array.reshape(-1), first * batch_size * width, width)
        clear = team.bound(clear_padding, array.size, steps.starts, grid.at(steps.whole.rows))
        calls.append(partial(clear, steps.starts))
    return calls


def input_grid(x: np.ndarray) -> Grid:
    """An array (T, N, width), a copy of it where it is not contiguous."""
    return Grid(flat(x), 0, x.shape[-1])


def outputs_of(hidden: np.ndarray) -> Grid:
    """What a layer puts out, (T + D, N, D*P), for the layer above to read."""
    _, batch_size, width = hidden.shape
    return Grid(hidden.reshape(-1), batch_size * width, width)


def drop(source: Grid, target: Grid, kept: Grid, steps: StepRows, desc: RNNDescriptor) -> Grid:
    """Write `source`, or its gradient, with dropout applied into `target`, and return that."""
    scale = desc.np_dtype.type(0 if desc.dropout == 1 else 1 / (1 - desc.dropout))
    for part in steps.parts():
        count, width = part.count, target.stride
        matrices = (grid.at(part.rows) for grid in (target, source, kept))
        team.run(dropout.drop, count * width, *matrices, scale, count, width)
    return target
