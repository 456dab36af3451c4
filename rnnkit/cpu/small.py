"""Calls without options: prepared once for a size, one then does little more than run its kernels."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Any

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.memory import IDLE_BYTES, SMALL_BYTES, Memory, popped
from rnnkit.call.options import options_of
from rnnkit.call.workspace import Workspace, workspace_nbytes
from rnnkit.cpu.backward import Gradient, arrays_of, begin, gradient_of
from rnnkit.cpu.engine import infer, laid_out
from rnnkit.cpu.infer import brief_calls
from rnnkit.cpu.layer import layers_of
from rnnkit.cpu.rows import rows_of
from rnnkit.cpu.run import final_states, given
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.kernels.machine import team


@lru_cache(256)
def is_small(desc: RNNDescriptor, seq_len: int, batch_size: int) -> bool:
    """Whether a call may be a `SmallCall`: it draws nothing, and has at least one step and a small workspace."""
    some = seq_len * batch_size > 0 and not desc.draws
    return some and workspace_nbytes(desc, seq_len, batch_size) <= SMALL_BYTES


class SmallCall:
    """A training forward of one size and its backward, prepared for this number of threads.

    It checks no argument. Results are new arrays but for y. What backward needs is kept in this object until the next
    forward overwrites it, so one user at a time may have it.
    """

    def __init__(self, desc: RNNDescriptor, seq_len: int, batch_size: int, threads: int) -> None:
        self.desc, self._threads = desc, threads
        nothing = {"x": np.empty(0, desc.np_dtype)}
        workspace = Workspace(desc, nothing, options_of("forward", desc, seq_len, batch_size), Memory())
        self._steps = rows_of(workspace.steps, workspace.memory.arena)
        self._ready = laid_out(workspace, self._steps, threads)
        self._calls = [call for _, calls in self._ready.groups for call in calls]
        self._y = self._steps.after(self._ready.arrays[f"hidden_l{desc.num_layers - 1}"])
        self._gradients: deque[Gradient] = deque()
        self.nbytes = workspace.memory.arena.nbytes
        self.is_brief = 2 * _work(desc, seq_len, batch_size) <= team.BRIEF_WORK and not self._ready.packing

    def forward(self, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """y, which is overwritten by the next forward, hy and cy."""
        hy, cy = final_states(self.desc, self._steps.batch_size)
        own = given(x, w, hx, cx, hy, cy)
        for pack in self._ready.packing:
            pack(w)
        for call in self._calls:
            call(own)
        return self._y, hy, cy

    def backward(
        self, w: np.ndarray, x: np.ndarray, dy: Any, dhy: Any, dcy: Any, wants_dx: bool, wants_dhx: bool
    ) -> tuple:
        """dx (empty unless wanted), dhx (undefined unless wanted), dcx and dw."""
        dx, dhx, dcx, dw = begin(self.desc, w, self._steps, dhy, dcy, np.empty(w.shape, w.dtype), wants_dx)
        try:
            gradient = self._gradients.pop()
        except IndexError:  # the first time, or another thread is at work with it
            gradient = gradient_of(self.desc, self._ready.arrays, self._steps, self._threads, Arena())
        gradient.run(arrays_of(w, x, dy, dx, dhx, dcx, dw, dw_is_new=True, wants_dhx=wants_dhx), dx)
        self._gradients.append(gradient)
        return dx, dhx, dcx, dw


class Held:
    """A `SmallCall` in use. When this is deleted, the call is idle, and another user may take it."""

    __slots__ = "call", "idle"

    def __init__(self, call: SmallCall, idle: deque[SmallCall]) -> None:
        self.call, self.idle = call, idle

    def __del__(self) -> None:
        if self.call.nbytes * (len(self.idle) + 1) <= IDLE_BYTES:
            self.idle.append(self.call)


def taken(desc: RNNDescriptor, seq_len: int, batch_size: int, threads: int, idle: deque[SmallCall]) -> Held:
    """One of the idle calls of this size, or a new one."""
    return Held(popped(idle) or SmallCall(desc, seq_len, batch_size, threads), idle)


class PreparedInference:
    """A call of one size that keeps nothing for a backward, prepared for this number of threads.

    It checks no argument, and any number of users may have it at once.
    """

    def __init__(self, desc: RNNDescriptor, seq_len: int, batch_size: int, threads: int) -> None:
        self._size, self._options = (desc, seq_len, batch_size, threads), options_of("infer", desc, seq_len, batch_size)
        self._sequences = brief_calls(desc, self._options.steps)
        self._idle: deque[SmallCall] | None = None
        if desc.num_directions == 2 and is_small(desc, seq_len, batch_size):
            self._idle = deque()
        self.is_brief = self._sequences is not None and _work(desc, seq_len, batch_size) <= team.BRIEF_WORK

    def run(self, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """y, hy and cy."""
        if self._sequences is not None:
            return self._sequences.run(x, hx, cx, w)
        if self._idle is not None:
            held = taken(*self._size, self._idle)
            y, hy, cy = held.call.forward(w, x, hx, cx)
            return y.copy(), hy, cy
        return infer(self._size[0], w, x, hx, cx, self._options)


def _work(desc: RNNDescriptor, seq_len: int, batch_size: int) -> int:
    return sum(layer.work for layer in layers_of(desc)) * seq_len * batch_size
