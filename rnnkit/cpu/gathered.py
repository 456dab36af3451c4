"""The weight gradient of several single-step calls at once.

One such call would read and write the whole weight gradient to add a few rows of data. With H = 256 this takes most of
the time of a backward of one sequence, and a fifth of a chain of training steps through PyTorch.
"""

from __future__ import annotations

from ctypes import memmove

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.workspace import workspace_layout
from rnnkit.cpu.backward import PreparedBackward
from rnnkit.cpu.layer import groups_of
from rnnkit.cpu.rows import same_length
from rnnkit.cpu.scheduler import Scheduler
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.operands import BackwardArrays

_ROWS = 32  # of all gathered calls together


class Gathered:
    """Single-step calls of `batch_size` sequences each, treated as one call with all their sequences."""

    def __init__(self, desc: RNNDescriptor, batch_size: int, threads: int) -> None:
        self._capacity, self._count, self._calls, arena = _ROWS // batch_size, 0, [], Arena()
        steps, dtype = same_length(1, self._capacity * batch_size), desc.np_dtype
        self._arrays = {block.name: arena.take(*block) for block in workspace_layout(desc, 1, steps.batch_size)}
        scheduler = Scheduler(steps, dtype.itemsize, threads, in_place=True)
        self._gradient = PreparedBackward(desc, self._arrays, scheduler, arena, groups_of(desc, False))
        dgates = self._gradient.dgates.reshape(self._capacity, -1)
        x = np.empty((self._capacity, batch_size * desc.row_size), dtype)
        for rows in zip(dgates, x, strict=True):
            arena, layout = Arena(), workspace_layout(desc, 1, batch_size)
            memory = arena.side_by_side(layout), *rows
            self._calls.append(_Call(memory, {block.name: arena.take(*block) for block in layout}))
        self._arguments = BackwardArrays(0, x.reshape(-1), 0, 0, 0, 0, 0, 0, 0, False, False, False)

    @property
    def is_full(self) -> bool:
        """Whether `add_to` must run before the next `take`."""
        return self._count == self._capacity

    def take(self, saved: int, dgates: int, x: int) -> None:
        """Copy the saved memory of a `PreparedCall`, its gates' gradients and its input from their addresses."""
        for (target, nbytes), source in zip(self._calls[self._count].addresses, (saved, dgates, x), strict=True):
            memmove(target, source, nbytes)
        self._count += 1

    def add_to(self, dw: np.ndarray) -> None:
        """Add to dw, flat, the gradient of the calls taken since the last `add_to`."""
        for call in self._calls[self._count :]:
            call.clear()
        for name, target in self._arrays.items():
            np.concatenate([call.arrays[name] for call in self._calls], axis=target.ndim - 2, out=target)
        self._gradient.run(self._arguments._replace(dw=dw), dw[:0])
        self._count = 0


class _Call:
    """Buffers of one call, in the memory order of `PreparedCall`, and the arrays of its workspace as views."""

    def __init__(self, memory: tuple[np.ndarray, ...], arrays: dict[str, np.ndarray]) -> None:
        self._memory, self.arrays = memory, arrays
        self.addresses = [(buffer.ctypes.data, buffer.nbytes) for buffer in memory]

    def clear(self) -> None:
        """Zero the buffers, so that they contribute nothing."""
        for buffer in self._memory:
            buffer[...] = 0
