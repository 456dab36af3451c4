"""Gradient checkpointing: save the states only at the start of each segment, and recompute the segments in backward.

The layers of a group (`workspace.checkpointed_layers`) run segment by segment together. Each segment is a short
training forward from the states at its start. Backward visits the segments in reverse order: it reruns each one and
backpropagates through it. The gradients of states and weights accumulate in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.steps import segments
from rnnkit.call.workspace import Workspace, checkpoint_layout, checkpointed_layers, workspace_layout
from rnnkit.common.lazy import lazy
from rnnkit.cpu.backward import (
    CheckpointedLayers,
    PreparedBackward,
    backward_arrays,
    begin,
    finish_states,
    no_arrays,
    prepare_adding,
    reset_gradients,
)
from rnnkit.cpu.layer import Layer, deepest_of, flat, groups_of, layers_of, pack, with_scratch
from rnnkit.cpu.rows import StepRows, segment_of
from rnnkit.cpu.run import final_states, forward_arrays, prepare_clearing, prepare_training, train_groups
from rnnkit.cpu.scheduler import Scheduler
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.formats import ROWS_AT_ONCE


def forward(
    desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, workspace: Workspace
) -> tuple[Any, Any, Any]:
    """Run the network on x and save the states at the start of each segment; returns y, hy and cy, new arrays."""
    steps = workspace.steps
    workspace.allocate(checkpoint_layout(desc, steps.seq_len, steps.batch_size, workspace.checkpoint_steps))
    saved, run = workspace.arrays, _Segments(desc, w, workspace, workspace.memory.arena)
    saved["start_hidden"][0] = 0 if hx is None else hx
    if desc.has_cell_state:
        saved["start_cell"][0] = 0 if cx is None else cx
    y = np.empty((steps.seq_len, steps.batch_size, desc.num_directions * desc.output_size), w.dtype)
    final = final_states(desc, steps.batch_size)
    for indices in checkpointed_layers(desc):
        top = layers_of(desc)[indices[-1]]
        outputs = y if top.layer == desc.num_layers - 1 else steps.after(saved[f"output_l{top.layer}"])
        for number in range(len(run.bounds)):
            (segment, own_steps) = run.segment(indices, number, final)
            part = outputs[slice(*run.steps_of(indices, number))]
            part[:, :, top.outputs] = own_steps.after(segment.arrays[f"hidden_l{top.layer}"])[:, :, top.outputs]
            for clear in prepare_clearing([part], own_steps, of_states=False):
                clear(0)
    return y, *final


def backward(
    desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, arena: Arena, dy: Any, dhy: Any, dcy: Any, dw: Any
) -> tuple:
    """Compute dx, dhx, dcx and dw, with scratch from the arena. If dw is given, the gradient is added to it."""
    steps = workspace.steps
    scratch = arena if workspace.options.mask is not None else None
    dx, dhx, dcx, dw = result = begin(desc, w, steps, dhy, dcy, dw, True, scratch)
    of_resets = reset_gradients(steps, dhx, dcx)
    run, w = _Segments(desc, w, workspace, arena), flat(w)
    for indices in reversed(checkpointed_layers(desc)):
        lowest, dinput = layers_of(desc)[indices[0]], dx
        if lowest.layer:
            shape = steps.seq_len, steps.batch_size, lowest.input_size
            dinput = arena.take(f"dlayer_{lowest.layer % 2}", shape, dx.dtype)
        for number in reversed(range(len(run.bounds))):
            (segment, own_steps), part = run.segment(indices, number), slice(*run.steps_of(indices, number))
            own_layers = CheckpointedLayers(lowest.layer, packs=number + 1 == len(run.bounds))
            prepared = desc, segment.arrays, run.scheduler(own_steps), arena, run.groups(indices), own_layers
            own_dy, gradient = None if dy is None else dy[part], PreparedBackward(*prepared)
            gradient.run(backward_arrays(w, segment.x, own_dy, dinput[part], dhx, dcx, dw, of_resets), dx[part])
            if lowest.direction == 1:  # add to the dx of the forward direction, which ran before
                for call in prepare_adding(dinput[part], gradient.dx, own_steps):
                    call(no_arrays(dx.dtype))
                if lowest.layer:
                    gradient.drop(dinput[part], lowest.layer)
        if lowest.direction == desc.num_directions - 1:
            dy = dinput
    finish_states(desc, steps, dhx, dcx, dw, of_resets)
    return result


class _Segments:
    """The segments between the checkpoints of a workspace, run in an arena."""

    def __init__(self, desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, arena: Arena) -> None:
        self._desc, self._w, self._workspace, self._arena = desc, w, workspace, arena
        steps = workspace.steps
        self.bounds = segments(steps.seq_len, steps.batch_size, w.itemsize, workspace.checkpoint_steps)
        self._threads = thread_pool.wanted_size()
        # Each segment has the sequence order of the whole batch, so that sums over rows add in the same order.
        self._order = steps.longest_first if steps.listed else None

    def scheduler(self, steps: StepRows) -> Scheduler:
        """Return the scheduler of a segment of these steps."""
        return Scheduler(steps, self._w.itemsize, self._threads)

    @lazy
    def _packed(self) -> Any:
        desc, precision = self._desc, self._workspace.options.precision
        packed, deepest = pack(desc, self._w, self._arena, precision), deepest_of(layers_of(desc))
        return with_scratch(packed, precision, deepest, ROWS_AT_ONCE, self._threads, self._arena.take)

    def steps_of(self, indices: tuple[int, ...], number: int) -> tuple[int, int]:
        """Return [start, stop) of the steps of a segment."""
        start, stop = self.bounds[number]
        if layers_of(self._desc)[indices[0]].direction == 1:
            start, stop = self._workspace.steps.seq_len - stop, self._workspace.steps.seq_len - start
        return start, stop

    def groups(self, indices: tuple[int, ...]) -> tuple[tuple[Layer, ...], ...]:
        """Return the pseudo-layers of a indices, in the groups that run together."""
        precision = self._workspace.options.precision
        if len(indices) == self._desc.num_pseudo_layers:
            return groups_of(self._desc, self._desc.dropout > 0, precision)
        return tuple((layers_of(self._desc, precision)[index],) for index in indices)

    def segment(
        self, indices: tuple[int, ...], number: int, final: tuple[Any, Any] | None = None
    ) -> tuple[Workspace, StepRows]:
        """Return the workspace and the steps of a segment; run it, unless its results are still in the arena.

        In forward the final states of a segment are saved as the initial ones of the next; those of the last segment
        go to `final`.
        """
        starts = (self._workspace.arrays.get(name) for name in ("start_hidden", "start_cell"))
        reset_to = (None if array is None else array[0] for array in starts)  # copies: the user's hx and cx may change
        steps = segment_of(self._workspace.steps, *self.steps_of(indices, number), self._order, *reset_to)
        segment, key = self._workspace_of(indices, number, steps), (self._workspace.generation, indices, number)
        if self._arena.segment != key:
            self._arena.segment = None  # until it is complete
            arrays = forward_arrays(segment.x, self._w[:0], *self._states(number, final))
            groups = prepare_training(self.groups(indices), self.scheduler(steps), segment, self._packed)
            train_groups(groups, arrays, segment, steps, self.steps_of(indices, number)[0])
            self._arena.segment = key
        return segment, steps

    def _workspace_of(self, indices: tuple[int, ...], number: int, steps: StepRows) -> Workspace:
        """Return the workspace of a segment. Chains of one pseudo-layer share their memory."""
        desc, saved, (start, stop) = self._desc, self._workspace.arrays, self.steps_of(indices, number)
        needed = layers_of(desc)[indices[0]].layer == 0 or desc.inputs_size > 0
        x = self._workspace.x[start:stop] if needed else self._workspace.x[:0]
        options = self._workspace.options._replace(steps=steps, checkpoint_steps=None)
        segment = Workspace(desc, {"x": x}, options, self._workspace.memory)
        for name, shape, dtype in workspace_layout(desc, stop - start, steps.batch_size, indices, steps.with_resets):
            shared = name if len(indices) > 1 else name.rstrip("0123456789")
            segment.arrays[name] = self._arena.take(shared, shape, dtype)
        below = f"l{layers_of(desc)[indices[0]].layer - 1}"
        if f"output_{below}" in saved:
            segment.arrays[f"hidden_{below}"] = saved[f"output_{below}"][start : stop + 2]
        return segment

    def _states(self, number: int, final: tuple[Any, Any] | None) -> tuple[Any, ...]:
        """Return hx and cx of a segment, and the arrays for its hy and cy: dummies if these are saved already."""
        starts = [self._workspace.arrays.get(name) for name in ("start_hidden", "start_cell")]
        before, after = ([None if one is None else one[i : i + 1] for one in starts] for i in (number, number + 1))
        if final is None:
            after = final_states(self._desc, self._workspace.steps.batch_size)
        elif number + 1 == len(self.bounds):
            after = final
        return *before, *after
