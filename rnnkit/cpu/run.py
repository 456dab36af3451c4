"""Run pseudo-layers on NumPy arrays: operands and calls of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.steps import row_numbers
from rnnkit.call.workspace import Workspace
from rnnkit.cpu.layer import Layer, contiguous, filled
from rnnkit.cpu.rows import Part, Rows, StepRows
from rnnkit.cpu.scheduler import Scheduler
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels import dropout
from rnnkit_kernels.loop import forward
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.matrix import CallMatrix
from rnnkit_kernels.noise import STREAMS, Counter, Draw, bernoulli, draw, dropout_factor, seed_words
from rnnkit_kernels.operands import CallPosition, EndStates, ForwardArrays, LayerPass, Operands, Schedule
from rnnkit_kernels.rows import clear_padding

_ALL_STEPS = -1


class Run(NamedTuple):
    """A pseudo-layer with the arrays that it reads and writes."""

    layer: Layer
    source: np.ndarray | None  # its input (T, N, I); None means the call's
    hidden: np.ndarray  # (T + D, N, D*P)
    gates: np.ndarray  # (positions of all steps or of a chunk, columns)
    cells: np.ndarray  # cell states (T + D, N, H), or (2, N, H)
    double_buffered: bool  # whether only two steps of the cell states exist
    noises: np.ndarray | None = None  # drawn once for all steps, (N, ...)
    step_noises: np.ndarray | None = None  # drawn for each step, (T, N, ...)

    @property
    def draws(self) -> bool:
        """Whether stages read noises: another type of operand, for which kernels are compiled separately."""
        return self.noises is not None or self.step_noises is not None

    def part(self, steps: StepRows, start: int, stop: int) -> Part:
        """Return the steps start:stop in processing order, which is reversed in the reverse direction."""
        if self.layer.direction == 1:
            start, stop = steps.capacity - stop, steps.capacity - start
        return steps.part(start, stop)

    def ends(self, steps: StepRows) -> EndStates:
        """Return the initial and the final states, for a kernel."""
        direction = self.layer.direction
        hidden = steps.initial[direction], steps.final[direction]
        cells = hidden
        if self.double_buffered:
            cells = steps.double_buffered_ends if direction == 0 else steps.double_buffered_ends[::-1]
        states = [rows.of(self.hidden, self.layer.outputs.start) for rows in hidden]
        return EndStates(self.layer.index, *states, *(rows.of(self.cells) for rows in cells))

    def layer_pass(self, part: Part, keeps_gates: bool) -> LayerPass:
        """Return the operands of a kernel for some of the steps. The gate buffer covers all steps, or a chunk."""
        layer, dtype = self.layer, self.hidden.dtype
        before, after = part.states(layer.direction, self.double_buffered)
        gates = (part.positions if keeps_gates else part.listed).of(self.gates)
        operands = Operands(
            gates=gates, hidden_prev=part.previous[layer.direction].of(self.hidden, layer.outputs.start),
            hidden=part.following.of(self.hidden, layer.outputs.start),
            states_prev=before.of(self.cells), states=after.of(self.cells), inputs=self._side_inputs(part),
            noises=None if self.noises is None else part.batch.of(self.noises),
            step_noises=None if self.step_noises is None else part.rows.of(self.step_noises),
        )  # fmt: skip
        x = part.rows.or_call_data(self.source, layer.input_size, dtype)
        return LayerPass(layer.direction == 1, layer.constants, part.starts, x, operands)

    def _side_inputs(self, part: Part) -> CallMatrix | None:
        """Return the last columns of the network's x, which every layer reads."""
        layer, size = self.layer, self.layer.inputs_size
        return part.rows.or_call_data(None, layer.width, self.hidden.dtype, layer.width - size) if size else None


def training_runs(desc: RNNDescriptor, arrays: dict[str, Any], steps: StepRows, group: tuple[Layer, ...]) -> list[Run]:
    """Return the runs of a group of pseudo-layers in training, in the workspace's arrays, which backward reads."""
    runs = []
    for layer in group:
        cells = arrays[f"cell_{layer.index}"] if desc.has_cell_state else np.empty(0, desc.np_dtype)
        gates = arrays[f"gates_{layer.index}"].reshape(-1, layer.columns)
        source, hidden = _layer_input(desc, arrays, steps, layer.layer), arrays[f"hidden_l{layer.layer}"]
        drawn = (arrays.get(f"{name}_{layer.index}") for name in ("noises", "step_noises"))
        runs.append(Run(layer, source, hidden, gates, cells, False, *drawn))
    return runs


def _layer_input(desc: RNNDescriptor, arrays: dict[str, Any], steps: StepRows, layer: int) -> np.ndarray | None:
    """Return the input of a layer: None (the call's), or the outputs of the layer below, after dropout."""
    if layer == 0:
        return None
    return arrays[f"input_l{layer}"] if desc.dropout > 0 else steps.states_after(arrays[f"hidden_l{layer - 1}"])


def final_states(desc: RNNDescriptor, batch_size: int) -> tuple[np.ndarray, Any]:
    """Return new arrays for hy and cy; cy is None without a cell state."""
    count, dtype = desc.num_pseudo_layers, desc.np_dtype
    hy = np.empty((count, batch_size, desc.output_size), dtype)
    return hy, np.empty((count, batch_size, desc.states_size), dtype) if desc.has_cell_state else None


def forward_arrays(x: np.ndarray, w: np.ndarray, hx: Any, cx: Any, hy: np.ndarray, cy: Any) -> ForwardArrays:
    """Return the arrays of a call as the kernel takes them; w is dense, hx, cx and cy may be None."""
    hx, cx = 0 if hx is None else contiguous(hx), 0 if cx is None else contiguous(cx)
    return ForwardArrays(contiguous(x), w, hx, cx, hy, 0 if cy is None else cy)


PreparedGroup = tuple[Layer, Sequence[Callable[[ForwardArrays], None]]]
"""A group of pseudo-layers: its lowest one, and the prepared kernel calls."""


def prepare_group(runs: Sequence[Run], scheduler: Scheduler, schedule: Schedule, packed: Any) -> PreparedGroup:
    """Prepare the kernel calls of a group with these weights, in the order in which they run."""
    steps, group, calls = scheduler.steps, [run.layer for run in runs], []
    layer, zeros = group[0], np.zeros(group[0].sizes.hidden, runs[0].hidden.dtype)
    ends, in_place = filled([run.ends(steps) for run in runs], layer), scheduler.in_place
    code_cache = layer.code_cache.setdefault("drawn", {}) if runs[0].draws else layer.code_cache
    for start, stop in scheduler.calls(group, schedule):
        work = sum(run.layer.work for run in runs) * (stop - start) * steps.batch_size
        passes = [run.layer_pass(run.part(steps, start, stop), schedule.keeps_gates) for run in runs]
        position = CallPosition(in_place and not calls, not calls, stop == steps.capacity)
        arguments = layer.cell, filled(passes, layer), ends, schedule, position, packed, zeros
        calls.append(thread_pool.bound(forward, work, ForwardArrays(*[zeros] * 6), *arguments, code_cache=code_cache))
    if steps.with_resets:
        calls.insert(0, partial(_set_reset_states, runs, steps))
    return layer, calls


def _set_reset_states(runs: Sequence[Run], steps: StepRows, arrays: ForwardArrays) -> None:
    """Write the states that resets restore."""
    hx, cx = steps.reset_to
    for run in runs:
        run.hidden[steps.seq_len + 2, :, run.layer.outputs] = 0 if hx is None else hx[run.layer.index]
        if run.cells.size > 0:
            run.cells[steps.seq_len + 2] = 0 if cx is None else cx[run.layer.index]


def prepare_training(
    groups: Sequence[tuple[Layer, ...]], scheduler: Scheduler, workspace: Workspace, packed: np.ndarray
) -> tuple[PreparedGroup, ...]:
    """Prepare groups of pseudo-layers that write into the workspace's arrays."""
    prepared = []
    for group in groups:
        runs = training_runs(workspace.desc, workspace.arrays, scheduler.steps, group)
        prepared.append(prepare_group(runs, scheduler, scheduler.forward(group, keeps_gates=True), packed))
    return tuple(prepared)


def train_groups(
    groups: Sequence[PreparedGroup], arrays: ForwardArrays, workspace: Workspace, steps: StepRows, first_step: int = 0
) -> None:
    """Run groups of pseudo-layers, from the lowest to the highest, and fill the workspace.

    `first_step` is the index in the sequence of the first of `steps`; random draws depend on it.
    """
    if workspace.desc.draws_noise:
        _draw_noises(workspace, steps, first_step)
    for lowest, calls in groups:
        if lowest.layer and workspace.desc.dropout > 0:
            _drop_outputs(workspace, steps, lowest.layer, first_step)
        for call in calls:
            call(arrays)


def _draw_noises(workspace: Workspace, steps: StepRows, first_step: int) -> None:
    """Draw the cell's noises for all pseudo-layers of the workspace."""
    desc, cell, size, columns = workspace.desc, workspace.desc.cell, workspace.desc.hidden_size, {False: 0, True: 0}
    for number, noise in enumerate(cell.declaration.noises):
        rate, first = float(getattr(cell, noise.rate)), columns[noise.per_step]
        columns[noise.per_step] += size
        what = (bernoulli if noise.choice else dropout_factor)(rate, desc.np_dtype)
        for index in range(desc.num_pseudo_layers):
            array = workspace.arrays.get(f"{'step_' if noise.per_step else ''}noises_{index}")
            if array is not None:
                stream = index * STREAMS + number
                _draw(array, steps, first_step if noise.per_step else _ALL_STEPS, first, size, workspace, stream, what)


def _drop_outputs(workspace: Workspace, steps: StepRows, layer: int, first_step: int) -> None:
    """Draw the dropout mask of a layer, and write its input: the outputs of the layer below after dropout."""
    desc, below = workspace.desc, workspace.arrays[f"hidden_l{layer - 1}"]
    mask, dropped = workspace.arrays[f"mask_l{layer}"], workspace.arrays[f"input_l{layer}"]
    what, stream = Draw(round(desc.dropout * 2**32), False, True), layer * STREAMS + STREAMS - 1
    _draw(mask, steps, first_step, 0, mask.shape[-1], workspace, stream, what)
    drop(steps.states_after(below), dropped, mask, steps, desc)


def _draw(
    array: np.ndarray,
    steps: StepRows,
    first_step: int,
    first: int,
    units: int,
    workspace: Workspace,
    stream: int,
    what: Draw,
) -> None:
    """Draw `units` columns, from `first` on, of an array (T, N, ...), or (N, ...) if drawn once for all steps."""
    size = steps.batch_size
    parts = [(part.rows, part.count, first_step + part.rows.shift // max(size, 1)) for part in steps.parts()]
    for rows, count, step in parts if first_step >= 0 else [(Rows(row_numbers(size)), size, first_step)]:
        counter = Counter(size, workspace.options.first_row, step, stream, *seed_words(workspace.seed))
        thread_pool.run(draw, count * units, rows.of(array), count, first, units, counter, what)


def prepare_clearing(arrays: Iterable[np.ndarray], steps: StepRows, of_states: bool) -> list[Callable[[int], None]]:
    """Prepare the kernel calls, given 0, that zero the padding in arrays (T, N, ...), or of `states_shape` if
    `of_states`."""
    calls = []
    for array in arrays if steps.padded else ():
        rows = steps.whole.following if of_states else steps.whole.rows
        arguments = rows.of(array), steps.starts, steps.batch_size
        calls.append(thread_pool.bound(clear_padding, array.size, 0, *arguments))
    return calls


def drop(source: np.ndarray, target: np.ndarray, mask: np.ndarray, steps: StepRows, desc: RNNDescriptor) -> None:
    """Apply the dropout mask to `source` (T, N, ...), values or gradients, and write `target`."""
    scale = desc.np_dtype.type(0 if desc.dropout == 1 else 1 / (1 - desc.dropout))
    for part in steps.parts():
        count, width = part.count, target.shape[-1]
        matrices = map(part.rows.of, (target, source, mask))
        thread_pool.run(dropout.drop, count * width, *matrices, scale, count, width)
