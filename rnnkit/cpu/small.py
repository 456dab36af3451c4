"""Calls without options: prepared once for a size, one then does little more than run its kernels."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.memory import Memory, popped
from rnnkit.call.options import options_of
from rnnkit.call.workspace import Workspace, workspace_layout, workspace_nbytes
from rnnkit.cpu.backward import Gradient, gradient_of
from rnnkit.cpu.engine import infer, laid_out
from rnnkit.cpu.gathered import Gathered, gathers
from rnnkit.cpu.infer import brief_calls
from rnnkit.cpu.layer import layers_of
from rnnkit.cpu.rows import rows_of
from rnnkit.cpu.run import train_groups
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.kernels.machine import team
from rnnkit.kernels.operands import BackwardArrays, ForwardArrays

__all__ = ["Gathered", "PreparedInference", "SmallCall", "gathers", "is_small"]

_MOST_BYTES, _MOST_IDLE_BYTES = 1 << 22, 1 << 23
"""Of the workspace of a small call, and of the memory of idle ones of one size of a module, at most."""

_numbers = count()

COPIED_BYTES = 1 << 16
"""Of what a call keeps for backward, at most, that is copied. Of one step it always is: those come in chains, and a
copy takes a few percent of the time that the products take."""

_MOST_BRIEF_WORK = 3_000_000
"""Multiply-adds in inference up to which all layers go through the sequence step by step. What is laid out before the
call takes 50 us less than a longer one, and on two threads down to half of the time of a brief one.
"""


@lru_cache(256)
def is_small(desc: RNNDescriptor, seq_len: int, batch_size: int) -> bool:
    """Whether a call may be a `SmallCall`: it has at least one step and a small workspace."""
    return seq_len * batch_size > 0 and workspace_nbytes(desc, seq_len, batch_size) <= _MOST_BYTES


class SmallCall:
    """A training forward of one size and its backward, prepared for this number of threads.

    It checks no argument: each is a C-contiguous array, or the address of one. Results are new arrays but for y. What
    backward needs is in `ws_memory` until the next forward overwrites it: one user at a time may have this object.

    Attributes
    ----------
    ws_memory : ndarray of bytes
        What forward leaves for backward: a copy, written back here, is as good.
    ws_address : int
        Where that is.
    is_copied : bool
        Whether it is copied, so that other users may have this object before backward.
    number : int
        Of what it holds: no other call has this one, and this has another when it holds something else.
    """

    def __init__(self, desc: RNNDescriptor, seq_len: int, batch_size: int, threads: int) -> None:
        self.desc, self._threads = desc, threads
        nothing = {"x": np.empty(0, desc.np_dtype)}
        options = options_of("forward", desc, seq_len, batch_size)
        self._workspace = workspace = Workspace(desc, nothing, options, Memory())
        self.ws_memory = workspace.memory.arena.side_by_side(workspace_layout(desc, seq_len, batch_size))
        self.ws_address, self.number = self.ws_memory.ctypes.data, next(_numbers)
        self._steps = rows_of(workspace.steps, workspace.memory.arena)
        self._ready = laid_out(workspace, self._steps, threads)
        self._y = self._steps.after(self._ready.arrays[f"hidden_l{desc.num_layers - 1}"])
        self._gradients: deque[Gradient] = deque()
        self._input = seq_len, batch_size, desc.row_size
        self._states = desc.num_pseudo_layers, batch_size, desc.output_size
        self._cells = (*self._states[:2], desc.states_size) if desc.has_cell_state else None
        self.nbytes = workspace.memory.arena.nbytes
        self.is_copied = seq_len == 1 or self.ws_memory.nbytes <= COPIED_BYTES
        self.is_brief = 2 * _work(desc, seq_len, batch_size) <= team.SINGLE_THREAD_WORK and not self._ready.packing

    def forward(
        self, w: np.ndarray, x: np.ndarray | int, hx: np.ndarray | int, cx: np.ndarray | int, seed: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """y, which is overwritten by the next forward, hy and cy, None without cells; a state of 0 is zeros. A network
        that draws needs a seed."""
        hy, cy = np.empty(self._states, w.dtype), None if self._cells is None else np.empty(self._cells, w.dtype)
        own = ForwardArrays(x, w, hx, cx, hy, 0 if cy is None else cy)
        for pack in self._ready.packing:
            pack(w)
        self._workspace.seed = seed
        self.is_overwritten()
        train_groups(self._ready.groups, own, self._workspace, self._steps)
        return self._y, hy, cy

    def backward(
        self, w: np.ndarray, x: np.ndarray | int, dy: np.ndarray | int, dhx: np.ndarray | int, dcx: np.ndarray | int,
        dw: np.ndarray | int, wants_dx: bool, wants_dhx: bool, dw_is_new: bool = True, gathered: Gathered | None = None,
    ) -> np.ndarray:
        """Write dw, or add to it unless it is new, and return dx (empty unless wanted); dhx and dcx, which begin as the
        gradients of hy and cy, become those of hx (undefined unless wanted) and cx. dy may be 0 for zeros, and dcx
        without cells. With `gathered` dw is 0: its `add_to` computes that of the weights."""
        dx = np.empty(self._input if wants_dx else (0,), w.dtype)
        if self.desc.inputs_size and wants_dx:
            dx[:, :, self.desc.input_size :] = 0  # `Gradient.run` adds to them
        try:
            gradient = self._gradients.pop()
        except IndexError:  # the first time, or another thread is at work with it
            gradient = gradient_of(self.desc, self._ready.arrays, self._steps, self._threads, Arena())
        gradient.run(BackwardArrays(w, x, dy, dx, dhx, dcx, dw, 0, 0, dw_is_new, wants_dhx, True), dx)
        if gathered is not None:
            gathered.take(self.ws_address, gradient.dgates_address, x if type(x) is int else x.ctypes.data)
        self._gradients.append(gradient)
        return dx

    def is_overwritten(self) -> None:
        """Say that `ws_memory` holds something else."""
        self.number = next(_numbers)

    def give_back(self, idle: deque[SmallCall]) -> None:
        """Let another user take this, unless those that are idle have much memory already."""
        if self.nbytes * (len(idle) + 1) <= _MOST_IDLE_BYTES:
            idle.append(self)

    def lease(self, idle: deque[SmallCall]) -> Lease:
        """This, to be given back when what is returned is deleted."""
        return Lease(self, idle)


class Lease:
    """A `SmallCall` in use. When this is deleted, the call is idle, and another user may take it."""

    __slots__ = "call", "idle"

    def __init__(self, call: SmallCall, idle: deque[SmallCall]) -> None:
        self.call, self.idle = call, idle

    def __del__(self) -> None:
        self.call.give_back(self.idle)


class PreparedInference:
    """A call of one size that keeps nothing for a backward, prepared for this number of threads.

    It checks no argument, and any number of users may have it at once.
    """

    def __init__(self, desc: RNNDescriptor, seq_len: int, batch_size: int, threads: int) -> None:
        desc = desc.evaluating
        self._size, self._options = (desc, seq_len, batch_size, threads), options_of("infer", desc, seq_len, batch_size)
        self._sequences, self.idle = brief_calls(desc, self._options.steps), deque[SmallCall]()
        is_brief = self._sequences is not None and _work(desc, seq_len, batch_size) <= _MOST_BRIEF_WORK
        self._is_laid_out = not is_brief and is_small(desc, seq_len, batch_size)  # it runs as a training forward
        if self._is_laid_out:
            self._sequences = None
        self.takes_addresses = self._sequences is not None or self._is_laid_out
        self.is_brief = self._sequences is not None and _work(desc, seq_len, batch_size) <= team.SINGLE_THREAD_WORK

    def run(self, w: np.ndarray, x: Any, hx: Any, cx: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """y, hy and cy, of arrays, or of addresses of C-contiguous ones if it `takes_addresses`; states may be None."""
        if self._sequences is not None:
            return self._sequences.run_dense(x, hx, cx, w)
        if self._is_laid_out:
            call = popped(self.idle) or SmallCall(*self._size)
            y, hy, cy = call.forward(w, x, 0 if hx is None else hx, 0 if cx is None else cx)
            y = y.copy()
            call.give_back(self.idle)
            return y, hy, cy
        return infer(self._size[0], w, x, hx, cx, self._options)


def _work(desc: RNNDescriptor, seq_len: int, batch_size: int) -> int:
    return sum(layer.work for layer in layers_of(desc)) * seq_len * batch_size
