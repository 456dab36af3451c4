"""Calls without options, prepared once for so many sequences: then little more than the kernel calls."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Any

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.drawn import drawn
from rnnkit.call.memory import Memory
from rnnkit.call.options import options_of
from rnnkit.call.pool import IDLE
from rnnkit.call.workspace import Workspace, workspace_layout
from rnnkit.cpu.backward import PreparedBackward, prepare_backward
from rnnkit.cpu.engine import FlatNetwork, prepare_forward
from rnnkit.cpu.gathered import Gathered
from rnnkit.cpu.infer import keeps, stepwise_calls
from rnnkit.cpu.route import Route, gathers, is_copied, is_prepared, is_stepwise_in_modules, route, work_of
from rnnkit.cpu.rows import StepRows, grown, serves
from rnnkit.cpu.run import train_groups
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.operands import BackwardArrays, ForwardArrays

__all__ = ["Gathered", "PreparedCall", "PreparedCalls", "PreparedInference", "gathers", "is_prepared"]

_numbers = count()


class PreparedCall:
    """A training forward and its backward, prepared for this number of threads and for batches of up to `capacity`
    steps on this route.

    It does not check arguments: each is a C-contiguous array, or the address of one. Results are new arrays, except for
    y. `ws_memory` holds what backward needs until the next forward overwrites it: only one user at a time may have this
    object.

    Attributes
    ----------
    capacity : int
        Number of steps of the longest batch.
    ws_memory : ndarray of bytes
        What forward saves for backward. A copy may be written back here before backward.
    ws_address : int
        Its address.
    is_copied : bool
        Whether users copy it, so that others may have this object before backward.
    generation : int
        Unique number of its contents; it changes whenever they are overwritten.
    """

    def __init__(self, desc: RNNDescriptor, capacity: int, batch_size: int, threads: int, route: Route) -> None:
        self.desc, self.capacity, self._threads, self._route = desc, capacity, threads, route
        nothing = {"x": np.empty(0, desc.np_dtype)}
        options = options_of("forward", desc, capacity, batch_size)
        self._workspace = workspace = Workspace(desc, nothing, options, Memory())
        self.ws_memory = workspace.memory.arena.side_by_side(workspace_layout(desc, capacity, batch_size))
        self.ws_address, self.generation = self.ws_memory.ctypes.data, next(_numbers)
        self._rows = StepRows(capacity, batch_size, padded=False)
        self._prepared = prepare_forward(workspace, self._rows, threads, route.in_place)
        self._hidden = self._prepared.arrays[f"hidden_l{desc.num_layers - 1}"]
        self._backwards: deque[PreparedBackward] = deque()
        self._states = desc.num_pseudo_layers, batch_size, desc.output_size
        self._cells = (*self._states[:2], desc.states_size) if desc.has_cell_state else None
        self.nbytes = workspace.memory.nbytes
        self.is_copied = is_copied(capacity, self.ws_memory.nbytes)

    def forward(
        self,
        seq_len: int,
        w: np.ndarray,
        x: np.ndarray | int,
        hx: np.ndarray | int,
        cx: np.ndarray | int,
        seed: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return y, which the next forward overwrites, hy and cy (None without a cell state). A state of 0 means zeros.
        A network with dropout or noise needs a seed."""
        if seq_len != self._rows.seq_len:
            self._rows.relist_evenly(seq_len)
        hy, cy = np.empty(self._states, w.dtype), None if self._cells is None else np.empty(self._cells, w.dtype)
        arrays = ForwardArrays(x, w, hx, cx, hy, 0 if cy is None else cy)
        for pack in self._prepared.packing:
            pack(w)
        self._workspace.seed = seed
        self.mark_overwritten()
        train_groups(self._prepared.groups, arrays, self._workspace, self._rows)
        return self._rows.after(self._hidden), hy, cy

    def backward(
        self,
        seq_len: int,
        w: np.ndarray,
        x: np.ndarray | int,
        dy: np.ndarray | int,
        dhx: np.ndarray | int,
        dcx: np.ndarray | int,
        dw: np.ndarray | int,
        wants_dx: bool,
        wants_dhx: bool,
        dw_is_new: bool = True,
        gathered: Gathered | None = None,
    ) -> np.ndarray:
        """Write dw, or add to it unless it is new, and return dx (empty unless wanted). dhx and dcx are updated in
        place, from the gradients of hy and cy to those of hx (undefined unless wanted) and cx. dy may be 0 for zeros;
        dcx is 0 without a cell state. With `gathered` dw is 0, and `gathered.add_to` computes the weight gradient."""
        if seq_len != self._rows.seq_len:
            self._rows.relist_evenly(seq_len)
        dx = np.empty((seq_len, self._rows.batch_size, self.desc.row_size) if wants_dx else (0,), w.dtype)
        if self.desc.inputs_size and wants_dx:
            dx[:, :, self.desc.input_size :] = 0  # `PreparedBackward.run` adds to them
        try:
            backward = self._backwards.pop()
        except IndexError:  # the first one, or another thread runs a backward of the same forward
            threads, in_place = self._threads, self._route.in_place_back
            backward = prepare_backward(self.desc, self._prepared.arrays, self._rows, threads, in_place, Arena())
        backward.run(BackwardArrays(w, x, dy, dx, dhx, dcx, dw, 0, 0, dw_is_new, wants_dhx, True), dx)
        if gathered is not None:
            gathered.take(self.ws_address, backward.dgates_address, x if type(x) is int else x.ctypes.data)
        self._backwards.append(backward)
        return dx

    def drawn(self, seq_len: int) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Return the random numbers of a forward of so many steps, as `drawn.drawn`."""
        return drawn(self._workspace, seq_len)

    def mark_overwritten(self) -> None:
        """Give the new contents of `ws_memory` a number."""
        self.generation = next(_numbers)


class PreparedCalls:
    """The prepared calls of a size, on a shelf that they share with those of other numbers of steps on one route."""

    def __init__(self, desc: RNNDescriptor, seq_len: int, batch_size: int, threads: int) -> None:
        self._route = route(desc, seq_len, batch_size)
        self.seq_len, self.shelf = seq_len, IDLE.shelf(PreparedCall, desc, batch_size, threads, self._route)
        self._new = desc, batch_size, threads
        self.is_single_threaded = self._route.is_short

    def take(self, capacity: int = 0) -> PreparedCall:
        """Return an idle call, or a new one; of this capacity, if it is given."""
        found, seq_len = self.shelf.take(), self.seq_len
        if found is not None and capacity in (0, found.capacity) and serves(found.capacity, seq_len, self._route.limit):
            return found
        desc, batch_size, threads = self._new
        if not capacity:
            capacity = seq_len if found is None else grown(seq_len, self._route.limit)
        return PreparedCall(desc, capacity, batch_size, threads, self._route)


class PreparedInference:
    """The inference of one size, prepared; thread-safe. It does not check arguments.

    Attributes
    ----------
    options : CallOptions
        Those of the call: none.
    takes_addresses : bool
        Whether arrays may be given by address.
    """

    def __init__(self, desc: RNNDescriptor, seq_len: int, batch_size: int) -> None:
        self._desc, self.options = desc.evaluating, options_of("infer", desc.evaluating, seq_len, batch_size)
        steps = self.options.steps
        is_stepwise = is_stepwise_in_modules(self._desc, steps)
        self._stepwise = stepwise_calls(self._desc, steps) if is_stepwise else None
        self._network = FlatNetwork(self._desc, steps)
        self._keeps = not is_stepwise and seq_len * batch_size > 0 and keeps(self._desc, steps)
        self.takes_addresses = is_stepwise or self._keeps
        is_short = work_of(desc, seq_len, batch_size) <= thread_pool.SINGLE_THREAD_WORK
        self.is_single_threaded = is_short and self.takes_addresses

    def run(self, w: np.ndarray, x: Any, hx: Any, cx: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return y, hy and cy. Arguments are arrays, or addresses of C-contiguous ones if `takes_addresses`; hx and cx
        may be None."""
        if self._stepwise is not None:
            return self._stepwise.run_dense(x, hx, cx, w)
        network = self._network.take(w)
        if self._keeps:
            results = network.run_exclusively(self.options.steps, x, hx, cx, w)
        else:
            results = network.infer(x, hx, cx, self.options, w, may_be_stepwise=False)
        self._network.shelf.give_back(network)
        return results
