"""The fast path of calls without options: prepared once for a size, then little more than the kernel calls."""

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
from rnnkit.cpu.backward import PreparedBackward, prepare_backward
from rnnkit.cpu.engine import infer, prepare_forward
from rnnkit.cpu.gathered import Gathered, gathers
from rnnkit.cpu.infer import stepwise_calls
from rnnkit.cpu.layer import layers_of
from rnnkit.cpu.rows import rows_of
from rnnkit.cpu.run import train_groups
from rnnkit.cpu.scheduler import reads_in_place
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.operands import BackwardArrays, ForwardArrays

__all__ = ["Gathered", "PreparedInference", "SmallCall", "gathers", "is_small"]

_MAX_BYTES, _MAX_IDLE_BYTES = 1 << 22, 1 << 23
"""Limits in bytes: the workspace of a small call; the idle calls of one size of a module in total."""

_numbers = count()

COPIED_BYTES = 1 << 16
"""Largest `ws_memory` that is copied. A single-step call is always copied: such calls come in chains, and a copy takes
a few percent of the time of the products."""

_MAX_STEPWISE_WORK = 3_000_000
"""Largest number of multiply-adds of an inference that runs stepwise. Above it, a prepared `SmallCall` takes 50 us less
than an unprepared call and, on two threads, down to half of the time of a stepwise one."""


@lru_cache(256)
def is_small(desc: RNNDescriptor, seq_len: int, batch_size: int) -> bool:
    """Return whether a call may be a `SmallCall`: it has at least one step and a small workspace."""
    return seq_len * batch_size > 0 and workspace_nbytes(desc, seq_len, batch_size) <= _MAX_BYTES


class SmallCall:
    """A training forward of one size and its backward, prepared for this number of threads.

    It does not check arguments: each is a C-contiguous array, or the address of one. Results are new arrays, except for
    y. `ws_memory` holds what backward needs until the next forward overwrites it: only one user at a time may have this
    object.

    Attributes
    ----------
    ws_memory : ndarray of bytes
        What forward saves for backward. A copy may be written back here before backward.
    ws_address : int
        Its address.
    is_copied : bool
        Whether users copy it, so that others may have this object before backward.
    number : int
        Unique number of its contents; it changes whenever they are overwritten.
    """

    def __init__(self, desc: RNNDescriptor, seq_len: int, batch_size: int, threads: int) -> None:
        self.desc, self._threads = desc, threads
        nothing = {"x": np.empty(0, desc.np_dtype)}
        options = options_of("forward", desc, seq_len, batch_size)
        self._workspace = workspace = Workspace(desc, nothing, options, Memory())
        self.ws_memory = workspace.memory.arena.side_by_side(workspace_layout(desc, seq_len, batch_size))
        self.ws_address, self.number = self.ws_memory.ctypes.data, next(_numbers)
        self._steps = rows_of(workspace.steps, workspace.memory.arena)
        in_place = reads_in_place(desc, self._steps)
        self._prepared = prepare_forward(workspace, self._steps, threads, in_place)
        self._y = self._steps.after(self._prepared.arrays[f"hidden_l{desc.num_layers - 1}"])
        self._gradients: deque[PreparedBackward] = deque()
        self._in_place_back = reads_in_place(desc, self._steps, backward=True)
        self._input = seq_len, batch_size, desc.row_size
        self._states = desc.num_pseudo_layers, batch_size, desc.output_size
        self._cells = (*self._states[:2], desc.states_size) if desc.has_cell_state else None
        self.nbytes = workspace.memory.arena.nbytes
        self.is_copied = seq_len == 1 or self.ws_memory.nbytes <= COPIED_BYTES
        is_short = 2 * _work(desc, seq_len, batch_size) <= thread_pool.SINGLE_THREAD_WORK
        self.is_single_threaded = is_short and not self._prepared.packing

    def forward(
        self, w: np.ndarray, x: np.ndarray | int, hx: np.ndarray | int, cx: np.ndarray | int, seed: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return y, which the next forward overwrites, hy and cy (None without a cell state). A state of 0 means zeros.
        A network with dropout or noise needs a seed."""
        hy, cy = np.empty(self._states, w.dtype), None if self._cells is None else np.empty(self._cells, w.dtype)
        arrays = ForwardArrays(x, w, hx, cx, hy, 0 if cy is None else cy)
        for pack in self._prepared.packing:
            pack(w)
        self._workspace.seed = seed
        self.mark_overwritten()
        train_groups(self._prepared.groups, arrays, self._workspace, self._steps)
        return self._y, hy, cy

    def backward(
        self, w: np.ndarray, x: np.ndarray | int, dy: np.ndarray | int, dhx: np.ndarray | int, dcx: np.ndarray | int,
        dw: np.ndarray | int, wants_dx: bool, wants_dhx: bool, dw_is_new: bool = True, gathered: Gathered | None = None,
    ) -> np.ndarray:
        """Write dw, or add to it unless it is new, and return dx (empty unless wanted). dhx and dcx are updated in
        place, from the gradients of hy and cy to those of hx (undefined unless wanted) and cx. dy may be 0 for zeros;
        dcx is 0 without a cell state. With `gathered` dw is 0, and `gathered.add_to` computes the weight gradient."""
        dx = np.empty(self._input if wants_dx else (0,), w.dtype)
        if self.desc.inputs_size and wants_dx:
            dx[:, :, self.desc.input_size :] = 0  # `PreparedBackward.run` adds to them
        try:
            gradient = self._gradients.pop()
        except IndexError:  # the first call, or another thread uses it
            gradient = prepare_backward(
                self.desc, self._prepared.arrays, self._steps, self._threads, self._in_place_back, Arena()
            )
        gradient.run(BackwardArrays(w, x, dy, dx, dhx, dcx, dw, 0, 0, dw_is_new, wants_dhx, True), dx)
        if gathered is not None:
            gathered.take(self.ws_address, gradient.dgates_address, x if type(x) is int else x.ctypes.data)
        self._gradients.append(gradient)
        return dx

    def mark_overwritten(self) -> None:
        """Give the new contents of `ws_memory` a number."""
        self.number = next(_numbers)

    def give_back(self, idle: deque[SmallCall]) -> None:
        """Return this call to the pool of idle ones, unless the pool is full."""
        if self.nbytes * (len(idle) + 1) <= _MAX_IDLE_BYTES:
            idle.append(self)

    def lease(self, idle: deque[SmallCall]) -> Lease:
        """Return a lease: when it is deleted, this call returns to the pool."""
        return Lease(self, idle)


class Lease:
    """A `SmallCall` in use; when the lease is deleted, the call returns to the pool."""

    __slots__ = "call", "idle"

    def __init__(self, call: SmallCall, idle: deque[SmallCall]) -> None:
        self.call, self.idle = call, idle

    def __del__(self) -> None:
        self.call.give_back(self.idle)


class PreparedInference:
    """The inference of one size, prepared for this number of threads; thread-safe. It does not check arguments."""

    def __init__(self, desc: RNNDescriptor, seq_len: int, batch_size: int, threads: int) -> None:
        desc = desc.evaluating
        self._size, self._options = (desc, seq_len, batch_size, threads), options_of("infer", desc, seq_len, batch_size)
        self._sequences, self.idle = stepwise_calls(desc, self._options.steps), deque[SmallCall]()
        is_stepwise = self._sequences is not None and _work(desc, seq_len, batch_size) <= _MAX_STEPWISE_WORK
        self._uses_small_call = not is_stepwise and is_small(desc, seq_len, batch_size)  # a training forward
        if self._uses_small_call:
            self._sequences = None
        self.takes_addresses = self._sequences is not None or self._uses_small_call
        is_short = _work(desc, seq_len, batch_size) <= thread_pool.SINGLE_THREAD_WORK
        self.is_single_threaded = self._sequences is not None and is_short

    def run(self, w: np.ndarray, x: Any, hx: Any, cx: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return y, hy and cy. Arguments are arrays, or addresses of C-contiguous ones if `takes_addresses`; hx and cx
        may be None."""
        if self._sequences is not None:
            return self._sequences.run_dense(x, hx, cx, w)
        if self._uses_small_call:
            call = popped(self.idle) or SmallCall(*self._size)
            y, hy, cy = call.forward(w, x, 0 if hx is None else hx, 0 if cx is None else cx)
            y = y.copy()
            call.give_back(self.idle)
            return y, hy, cy
        return infer(self._size[0], w, x, hx, cx, self._options)


def _work(desc: RNNDescriptor, seq_len: int, batch_size: int) -> int:
    return sum(layer.work for layer in layers_of(desc)) * seq_len * batch_size
