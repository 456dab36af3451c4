"""Running pseudo-layers on NumPy arrays: what they read, what they write, and the calls of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.random  # NumPy would import it on first use: in the middle of a call, where a fork might come

from rnnkit.call.arena import Arena
from rnnkit.call.steps import Steps
from rnnkit.call.workspace import Workspace
from rnnkit.cpu.layer import Layer, filled
from rnnkit.cpu.planner import Planner
from rnnkit.cpu.rows import Index, Part, StepRows
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.kernels import dropout
from rnnkit.kernels.loop import forward
from rnnkit.kernels.machine import team
from rnnkit.kernels.operands import Inputs, LayerPass, Operands, Schedule
from rnnkit.kernels.rows import clear_padding

_DRAWS = 8  # float32 numbers that Philox makes of one value of its counter


class Run(NamedTuple):
    """A pseudo-layer with what it reads and what it writes: the source (T, N, I), None for the input of the call,
    hidden states (T + D, N, D*P), gates (positions that are kept, columns) and cells (T + D, N, H), or (2, N, H) where
    they are not kept (`passing`)."""

    layer: Layer
    source: np.ndarray | None
    hidden: np.ndarray
    gates: np.ndarray
    cells: np.ndarray
    passing: bool

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

    def layer_pass(self, part: Part, keeps_gates: bool) -> LayerPass:
        """A part of the steps, for a kernel. Of the gates there are those of all steps, or of a chunk."""
        layer, dtype = self.layer, self.hidden.dtype
        before, after = part.states(layer.direction, self.passing)
        gates = (part.positions if keeps_gates else part.listed).of(self.gates)
        operands = Operands(
            gates=gates, hidden_prev=part.previous[layer.direction].of(self.hidden, layer.outputs.start),
            hidden=part.following.of(self.hidden, layer.outputs.start),
            states_prev=before.of(self.cells), states=after.of(self.cells),
        )  # fmt: skip
        x = part.rows.of_call(self.source, layer.input_size, dtype)
        facts = layer.sizes, part.starts, layer.products, layer.places, layer.offsets
        return LayerPass(layer.direction == 1, *facts, x, operands)


def kept_runs(desc: RNNDescriptor, arrays: dict[str, Any], steps: Steps, group: tuple[Layer, ...]) -> list[Run]:
    """A group of pseudo-layers in training: the places in the workspace's arrays, which backward reads again."""
    runs = []
    for layer in group:
        cells = arrays[f"cell_{layer.index}"] if desc.has_cell else np.empty(0, desc.np_dtype)
        gates = arrays[f"gates_{layer.index}"].reshape(-1, layer.columns)
        source, hidden = _kept_source(desc, arrays, steps, layer.layer), arrays[f"hidden_l{layer.layer}"]
        runs.append(Run(layer, source, hidden, gates, cells, passing=False))
    return runs


def _kept_source(desc: RNNDescriptor, arrays: dict[str, Any], steps: Steps, layer: int) -> np.ndarray | None:
    """What W of a layer multiplies: the input, or the outputs of the layer below as dropout left them."""
    if layer == 0:
        return None
    return arrays[f"input_l{layer}"] if desc.dropout > 0 else steps.after(arrays[f"hidden_l{layer - 1}"])


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
    calls: list[Callable[[Inputs], None]]  # of the kernel


def ready_group(runs: Sequence[Run], planner: Planner, schedule: Schedule, packed: Any) -> ReadyGroup:
    """Lay out the kernel calls of a group with these weights, in the order in which they run."""
    steps, group, ends, calls = planner.steps, [run.layer for run in runs], [], []
    layer, zeros = group[0], np.zeros(group[0].sizes.hidden, runs[0].hidden.dtype)
    for run in runs:
        initial, final, *cells = run.ends(steps)
        ends.append(((*initial, run.layer.outputs), (*final, run.layer.outputs), *cells))
    for start, stop in planner.calls(group, schedule):
        parts = [run.part(steps, start, stop) for run in runs]
        work = sum(run.layer.work for run in runs) * (stop - start) * steps.batch_size
        passes = [run.layer_pass(part, schedule.keeps_gates) for run, part in zip(runs, parts, strict=True)]
        arguments = layer.cell, filled(passes, layer), schedule, packed, zeros
        calls.append(team.bound(forward, work, Inputs(zeros, zeros), *arguments, site=layer.site))  # flat as well
    return ReadyGroup(runs, ends, calls)


def run_group(ready: ReadyGroup, states: BoundaryStates, inputs: Inputs) -> None:
    """Run a group of pseudo-layers over all steps, from their initial to their final states."""
    runs, ends, calls = ready
    for run, (initial, _, initial_cells, _) in zip(runs, ends, strict=True):
        run.hidden[initial] = 0 if states.hx is None else states.hx[run.layer.index]
        if states.cy is not None:
            run.cells[initial_cells] = 0 if states.cx is None else states.cx[run.layer.index]
    for call in calls:
        call(inputs)
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
        runs = kept_runs(workspace.desc, workspace.arrays, planner.steps, group)
        ready.append(ready_group(runs, planner, planner.forward(group, keeps_gates=True), packed))
    return tuple(ready)


def train_groups(
    ready: Sequence[ReadyGroup], states: BoundaryStates, workspace: Workspace, arena: Arena, steps: StepRows,
    inputs: Inputs, first_step: int = 0,
) -> None:
    """Run groups of pseudo-layers, from the lowest to the highest, and fill the workspace.

    The first of its `steps` is the sequence's `first_step`, from where on dropout's masks are drawn.
    """
    for group in ready:
        layer = group.runs[0].layer.layer
        if layer and workspace.desc.dropout > 0:
            _drop_outputs(workspace, arena, steps, layer, first_step)
        run_group(group, states, inputs)


def _drop_outputs(workspace: Workspace, arena: Arena, steps: StepRows, layer: int, first_step: int) -> None:
    """Write what a layer reads where outputs of the layer below are dropped."""
    desc, below = workspace.desc, workspace.arrays[f"hidden_l{layer - 1}"]
    kept, dropped = workspace.arrays[f"kept_l{layer}"], workspace.arrays[f"input_l{layer}"]
    # One Philox stream a layer: NumPy's counter-based generator, so that the seed alone decides about every bit.
    blocks, numbers = divmod(first_step * steps.batch_size * kept.shape[2], _DRAWS)
    stream = np.random.Generator(np.random.Philox(key=workspace.seed, counter=[blocks, 0, 0, layer]))
    stream.random(numbers, dtype=np.float32)
    draws = arena.take("draws", kept.shape, np.dtype(np.float32))
    stream.random(dtype=np.float32, out=draws)
    np.greater_equal(draws, desc.dropout, out=kept)
    drop(steps.after(below), dropped, kept, steps, desc)


def ready_to_clear(arrays: Iterable[np.ndarray], steps: StepRows, of_states: bool) -> list[Callable[[], None]]:
    """Lay out the calls that zero what lies beyond each sequence's length, in arrays (T, N, ...) or `states_shape`."""
    calls = []
    for array in arrays if steps.padded else ():
        rows = steps.whole.following if of_states else steps.whole.rows
        clear = team.bound(clear_padding, array.size, steps.starts, rows.of(array))
        calls.append(partial(clear, steps.starts))
    return calls


def drop(source: np.ndarray, target: np.ndarray, kept: np.ndarray, steps: StepRows, desc: RNNDescriptor) -> None:
    """Write `source` (T, N, ...), or its gradient, with dropout applied into `target`."""
    scale = desc.np_dtype.type(0 if desc.dropout == 1 else 1 / (1 - desc.dropout))
    for part in steps.parts():
        count, width = part.count, target.shape[-1]
        matrices = map(part.rows.of, (target, source, kept))
        team.run(dropout.drop, count * width, *matrices, scale, count, width)
