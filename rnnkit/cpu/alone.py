"""The sequences of a batch, each in a workspace of its own, without running forward again."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit.call.memory import Memory
from rnnkit.call.options import CallOptions
from rnnkit.call.steps import steps_of
from rnnkit.call.workspace import Workspace, workspace_layout


def sequences_of(workspace: Workspace) -> Sequences | None:
    """Return the sequences of a workspace; None if it lacks what backward needs, or has it at other places than a
    workspace of one sequence: with checkpoints, a mask or resets."""
    options = workspace.options
    is_usual = options.mask is None and workspace.steps.resets is None and options.checkpoint_steps is None
    return Sequences(workspace) if is_usual else None


class Sequences:
    """The sequences of a batch, one after the other, copied to a workspace of one sequence."""

    def __init__(self, workspace: Workspace) -> None:
        self._batch, self._memory, desc = workspace, Memory(), workspace.desc
        self._own = Workspace(desc, workspace.inputs, workspace.options, self._memory)
        self._own.allocate(workspace_layout(desc, workspace.steps.seq_len, 1))
        self._positions = workspace.steps.positions()

    def of(self, row: int) -> tuple[int, Workspace]:
        """Return the length of a sequence, and its workspace, which is valid until the next call."""
        batch = self._batch
        length, of_row = int(batch.steps.lengths[row]), slice(row, row + 1)
        for name, own in self._own.arrays.items():
            saved = batch.arrays[name]
            if name.startswith("noises"):  # (N, ...)
                own[:] = saved[of_row]
            elif name.startswith("gates"):
                rows = saved.reshape(-1, saved.shape[-1])
                np.take(rows, self._positions[:length, row], axis=0, out=own[:length, 0])
            else:  # (T, N, ...); states after each step are between the initial ones of both directions
                is_states = name.startswith(("hidden", "cell"))
                own[: length + is_states] = saved[: length + is_states, of_row]
                if is_states and batch.desc.bidirectional:
                    own[length + 1] = saved[batch.options.seq_len + 1, of_row]
        inputs = {name: _columns(one, row, length if name == "x" else None) for name, one in batch.inputs.items()}
        options = CallOptions(steps_of(length, 1), precision=batch.options.precision)  # backward draws nothing
        found = Workspace(batch.desc, inputs, options, self._memory)
        found.arrays, found.given_states = self._own.arrays, batch.given_states
        found.input_shapes = {name: (length, 1, batch.desc.hidden_size) for name in batch.input_shapes}
        return length, found


def _columns(array: Any, row: int, length: int | None) -> Any:
    """Return one sequence of an array (T, N, ...) or of states (L*D, N, ...)."""
    return None if array is None else array[:length, row : row + 1]
