"""Running pseudo-layers on NumPy arrays: what they read, what they write, and the calls of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.steps import Steps, row_numbers
from rnnkit.call.workspace import Workspace
from rnnkit.cpu.layer import Layer, dense, filled
from rnnkit.cpu.planner import Planner
from rnnkit.cpu.rows import Part, Rows, StepRows
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.kernels import dropout
from rnnkit.kernels.loop import forward
from rnnkit.kernels.machine import team
from rnnkit.kernels.machine.matrix import CallMatrix
from rnnkit.kernels.noise import Counter, Draw, bernoulli, draw, dropout_factor, seed_words
from rnnkit.kernels.operands import CallPosition, EndStates, ForwardArrays, LayerPass, Operands, Schedule
from rnnkit.kernels.rows import clear_padding

_STREAMS = 256  # of a pseudo-layer: those of its noises, and the last that of dropout in front of a layer
_ALL_STEPS = -1


class Run(NamedTuple):
    """A pseudo-layer with what it reads and what it writes: the source (T, N, I), None for the input of the call,
    hidden states (T + D, N, D*P), gates (positions that are kept, columns) and cells (T + D, N, H), or (2, N, H) where
    they are not kept (`passing`). Where training draws the cell's noises, those of all steps (N, ...) and of each (T,
    N, ...)."""

    layer: Layer
    source: np.ndarray | None
    hidden: np.ndarray
    gates: np.ndarray
    cells: np.ndarray
    passing: bool
    noises: np.ndarray | None = None
    step_noises: np.ndarray | None = None

    @property
    def draws(self) -> bool:
        """Whether there are noises for stages to read: another type of operand, for which kernels are compiled."""
        return self.noises is not None or self.step_noises is not None

    def part(self, steps: StepRows, start: int, stop: int) -> Part:
        """The steps that come start:stop on its way through the sequence."""
        if self.layer.direction == 1:
            start, stop = steps.seq_len - stop, steps.seq_len - start
        return steps.part(start, stop)

    def ends(self, steps: StepRows) -> EndStates:
        """The initial and the final states, for a kernel."""
        direction = self.layer.direction
        hidden = steps.initial[direction], steps.final[direction]
        cells = (steps.passing_ends if direction == 0 else steps.passing_ends[::-1]) if self.passing else hidden
        states = [rows.of(self.hidden, self.layer.outputs.start) for rows in hidden]
        return EndStates(self.layer.index, *states, *(rows.of(self.cells) for rows in cells))

    def layer_pass(self, part: Part, keeps_gates: bool) -> LayerPass:
        """A part of the steps, for a kernel. Of the gates there are those of all steps, or of a chunk."""
        layer, dtype = self.layer, self.hidden.dtype
        before, after = part.states(layer.direction, self.passing)
        gates = (part.positions if keeps_gates else part.listed).of(self.gates)
        operands = Operands(
            gates=gates, hidden_prev=part.previous[layer.direction].of(self.hidden, layer.outputs.start),
            hidden=part.following.of(self.hidden, layer.outputs.start),
            states_prev=before.of(self.cells), states=after.of(self.cells), inputs=self._side_inputs(part),
            noises=None if self.noises is None else part.batch.of(self.noises),
            step_noises=None if self.step_noises is None else part.rows.of(self.step_noises),
        )  # fmt: skip
        x = part.rows.or_call_data(self.source, layer.input_size, dtype)
        return LayerPass(layer.direction == 1, layer.facts, part.starts, x, operands)


    def _side_inputs(self, part: Part) -> CallMatrix | None:
        """The last columns of x, of every layer alike."""
        layer, size = self.layer, self.layer.inputs_size
        return part.rows.or_call_data(None, layer.width, self.hidden.dtype, layer.width - size) if size else None


def kept_runs(desc: RNNDescriptor, arrays: dict[str, Any], steps: Steps, group: tuple[Layer, ...]) -> list[Run]:
    """A group of pseudo-layers in training: the places in the workspace's arrays, which backward reads again."""
    runs = []
    for layer in group:
        cells = arrays[f"cell_{layer.index}"] if desc.has_cell_state else np.empty(0, desc.np_dtype)
        gates = arrays[f"gates_{layer.index}"].reshape(-1, layer.columns)
        source, hidden = _kept_source(desc, arrays, steps, layer.layer), arrays[f"hidden_l{layer.layer}"]
        drawn = (arrays.get(f"{name}_{layer.index}") for name in ("noises", "step_noises"))
        runs.append(Run(layer, source, hidden, gates, cells, False, *drawn))
    return runs


def _kept_source(desc: RNNDescriptor, arrays: dict[str, Any], steps: Steps, layer: int) -> np.ndarray | None:
    """What W of a layer multiplies: the input, or the outputs of the layer below as dropout left them."""
    if layer == 0:
        return None
    return arrays[f"input_l{layer}"] if desc.dropout > 0 else steps.after(arrays[f"hidden_l{layer - 1}"])


def final_states(desc: RNNDescriptor, batch_size: int) -> tuple[np.ndarray, Any]:
    """Where hy and cy go; cy is None without cells."""
    count, dtype = desc.num_pseudo_layers, desc.np_dtype
    hy = np.empty((count, batch_size, desc.output_size), dtype)
    return hy, np.empty((count, batch_size, desc.states_size), dtype) if desc.has_cell_state else None


def given(x: np.ndarray, w: np.ndarray, hx: Any, cx: Any, hy: np.ndarray, cy: Any) -> ForwardArrays:
    """The arrays of a call, as the kernel takes them; w is dense, hx, cx and cy may be None."""
    hx, cx = 0 if hx is None else dense(hx), 0 if cx is None else dense(cx)
    return ForwardArrays(dense(x), w, hx, cx, hy, 0 if cy is None else cy)


Calls = tuple[Layer, Sequence[Callable[[ForwardArrays], None]]]
"""A group of pseudo-layers that is ready to run: its lowest one, and the calls of the kernel."""


def ready_group(runs: Sequence[Run], planner: Planner, schedule: Schedule, packed: Any) -> Calls:
    """Lay out the kernel calls of a group with these weights, in the order in which they run."""
    steps, group, calls = planner.steps, [run.layer for run in runs], []
    layer, zeros = group[0], np.zeros(group[0].sizes.hidden, runs[0].hidden.dtype)
    ends, in_place = filled([run.ends(steps) for run in runs], layer), schedule.keeps_gates and planner.in_place
    site = layer.site.setdefault("drawn", {}) if runs[0].draws else layer.site
    for start, stop in planner.calls(group, schedule):
        work = sum(run.layer.work for run in runs) * (stop - start) * steps.batch_size
        passes = [run.layer_pass(run.part(steps, start, stop), schedule.keeps_gates) for run in runs]
        position = CallPosition(in_place and not calls, not calls, stop == steps.seq_len)
        arguments = layer.cell, filled(passes, layer), ends, schedule, position, packed, zeros
        calls.append(team.bound(forward, work, ForwardArrays(*[zeros] * 6), *arguments, site=site))
    if steps.with_resets:
        calls.insert(0, partial(_set_reset_states, runs, steps))
    return layer, calls


def _set_reset_states(runs: Sequence[Run], steps: StepRows, own: ForwardArrays) -> None:
    """Write what states start anew from."""
    hx, cx = steps.reset_to
    for run in runs:
        run.hidden[steps.seq_len + 2, :, run.layer.outputs] = 0 if hx is None else hx[run.layer.index]
        if run.cells.size > 0:
            run.cells[steps.seq_len + 2] = 0 if cx is None else cx[run.layer.index]


def ready_to_train(
    groups: Sequence[tuple[Layer, ...]], planner: Planner, workspace: Workspace, packed: np.ndarray
) -> tuple[Calls, ...]:
    """Groups of pseudo-layers that write into the workspace's arrays."""
    ready = []
    for group in groups:
        runs = kept_runs(workspace.desc, workspace.arrays, planner.steps, group)
        ready.append(ready_group(runs, planner, planner.forward(group, keeps_gates=True), packed))
    return tuple(ready)


def train_groups(
    ready: Sequence[Calls], own: ForwardArrays, workspace: Workspace, steps: StepRows, first_step: int = 0
) -> None:
    """Run groups of pseudo-layers, from the lowest to the highest, and fill the workspace.

    The first of its `steps` is the sequence's `first_step`: what is drawn depends on it.
    """
    if workspace.desc.draws_noise:
        _draw_noises(workspace, steps, first_step)
    for lowest, calls in ready:
        if lowest.layer and workspace.desc.dropout > 0:
            _drop_outputs(workspace, steps, lowest.layer, first_step)
        for call in calls:
            call(own)


def _draw_noises(workspace: Workspace, steps: StepRows, first_step: int) -> None:
    """Fill the arrays of the cell's noises, of all pseudo-layers that are in the workspace."""
    desc, cell, size, columns = workspace.desc, workspace.desc.cell, workspace.desc.hidden_size, {False: 0, True: 0}
    for number, noise in enumerate(cell.declaration.noises):
        rate, first = float(getattr(cell, noise.rate)), columns[noise.per_step]
        columns[noise.per_step] += size
        what = (bernoulli if noise.choice else dropout_factor)(rate, desc.np_dtype)
        for index in range(desc.num_pseudo_layers):
            array = workspace.arrays.get(f"{'step_' if noise.per_step else ''}noises_{index}")
            if array is not None:
                stream = index * _STREAMS + number
                _draw(array, steps, first_step if noise.per_step else _ALL_STEPS, first, size, workspace, stream, what)


def _drop_outputs(workspace: Workspace, steps: StepRows, layer: int, first_step: int) -> None:
    """Write what a layer reads where outputs of the layer below are dropped."""
    desc, below = workspace.desc, workspace.arrays[f"hidden_l{layer - 1}"]
    mask, dropped = workspace.arrays[f"mask_l{layer}"], workspace.arrays[f"input_l{layer}"]
    what, stream = Draw(round(desc.dropout * 2**32), False, True), layer * _STREAMS + _STREAMS - 1
    _draw(mask, steps, first_step, 0, mask.shape[-1], workspace, stream, what)
    drop(steps.after(below), dropped, mask, steps, desc)


def _draw(
    array: np.ndarray, steps: StepRows, first_step: int, first: int, units: int, workspace: Workspace, stream: int,
    what: Draw,
) -> None:
    """Draw so many columns from the `first` on of an array (T, N, ...), or (N, ...) of what is drawn for all steps."""
    size = steps.batch_size
    parts = [(part.rows, part.count, first_step + part.rows.shift // max(size, 1)) for part in steps.parts()]
    for rows, count, step in parts if first_step >= 0 else [(Rows(row_numbers(size)), size, first_step)]:
        counter = Counter(size, workspace.options.first_row, step, stream, *seed_words(workspace.seed))
        team.run(draw, count * units, rows.of(array), count, first, units, counter, what)


def ready_to_clear(arrays: Iterable[np.ndarray], steps: StepRows, of_states: bool) -> list[Callable[[], None]]:
    """Lay out the calls that zero what lies beyond each sequence's length, in arrays (T, N, ...) or `states_shape`."""
    calls = []
    for array in arrays if steps.padded else ():
        rows = steps.whole.following if of_states else steps.whole.rows
        clear = team.bound(clear_padding, array.size, steps.starts, rows.of(array))
        calls.append(partial(clear, steps.starts))
    return calls


def drop(source: np.ndarray, target: np.ndarray, mask: np.ndarray, steps: StepRows, desc: RNNDescriptor) -> None:
    """Write `source` (T, N, ...), or its gradient, with dropout applied into `target`."""
    scale = desc.np_dtype.type(0 if desc.dropout == 1 else 1 / (1 - desc.dropout))
    for part in steps.parts():
        count, width = part.count, target.shape[-1]
        matrices = map(part.rows.of, (target, source, mask))
        team.run(dropout.drop, count * width, *matrices, scale, count, width)
