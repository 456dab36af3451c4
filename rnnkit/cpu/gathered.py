"""The weights' gradient of several calls of one step at once.

For one such call alone it is read and written as a whole for a few numbers of each row: with H = 256 that takes most of
the time of a backward of one sequence, and a fifth of a chain of training steps through PyTorch.
"""

from __future__ import annotations

from ctypes import memmove

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.workspace import workspace_layout
from rnnkit.cpu.backward import Gradient
from rnnkit.cpu.layer import groups_of
from rnnkit.cpu.planner import Planner
from rnnkit.cpu.rows import same_length
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import num_weights
from rnnkit.kernels.operands import BackwardArrays

_ROWS = 32  # of all calls that are gathered
_MOST_SEQUENCES = 6  # of a call: with 8 it has enough to do with the gradient while it reads it
_LEAST_BYTES = 1 << 18  # of the gradient: a smaller one stays in the cache from call to call


def gathers(desc: RNNDescriptor, batch_size: int) -> bool:
    """Whether to gather calls of one step with so many sequences.

    Of several pseudo-layers those that are done first have no gates' gradients any more when the call ends, and the
    gradients of vectors are added up step by step.
    """
    is_large = num_weights(desc) * desc.np_dtype.itemsize >= _LEAST_BYTES
    is_one = desc.num_pseudo_layers == 1 and not desc.cell.declaration.vectors
    return is_one and is_large and 0 < batch_size <= _MOST_SEQUENCES


class Gathered:
    """Calls of one step, with so many sequences each, as one with the sequences of all."""

    def __init__(self, desc: RNNDescriptor, batch_size: int, threads: int) -> None:
        self._capacity, self._count, self._each, arena = _ROWS // batch_size, 0, [], Arena()
        steps, dtype = same_length(1, self._capacity * batch_size), desc.np_dtype
        self._arrays = {one.name: arena.take(*one) for one in workspace_layout(desc, 1, steps.batch_size)}
        planner = Planner(steps, dtype.itemsize, threads, in_place=True)
        self._gradient = Gradient(desc, self._arrays, planner, arena, groups_of(desc, False))
        dgates = self._gradient.dgates.reshape(self._capacity, -1)
        x = np.empty((self._capacity, batch_size * desc.row_size), dtype)
        for own in zip(dgates, x, strict=True):
            arena, layout = Arena(), workspace_layout(desc, 1, batch_size)
            memory = arena.side_by_side(layout), *own
            self._each.append(_Call(memory, {one.name: arena.take(*one) for one in layout}))
        self._arguments = BackwardArrays(0, x.reshape(-1), 0, 0, 0, 0, 0, 0, 0, False, False, False)

    @property
    def is_full(self) -> bool:
        """Whether `add_to` has to come before the next `take`."""
        return self._count == self._capacity

    def take(self, kept: int, dgates: int, x: int) -> None:
        """Copy what a `SmallCall` kept, its gates' gradients and its input from their addresses."""
        for (target, nbytes), source in zip(self._each[self._count].places, (kept, dgates, x), strict=True):
            memmove(target, source, nbytes)
        self._count += 1

    def add_to(self, dw: np.ndarray) -> None:
        """Add to dw, flat, what the calls that were taken since the last time contribute."""
        for call in self._each[self._count :]:
            call.clear()
        for name, target in self._arrays.items():
            np.concatenate([call.arrays[name] for call in self._each], axis=target.ndim - 2, out=target)
        self._gradient.run(self._arguments._replace(dw=dw), dw[:0])
        self._count = 0


class _Call:
    """Room for one call: its memory, as a `SmallCall` has it in this order, and the arrays of its workspace in it."""

    def __init__(self, memory: tuple[np.ndarray, ...], arrays: dict[str, np.ndarray]) -> None:
        self._memory, self.arrays = memory, arrays
        self.places = [(one.ctypes.data, one.nbytes) for one in memory]

    def clear(self) -> None:
        """Let it contribute nothing."""
        for one in self._memory:
            one[...] = 0
