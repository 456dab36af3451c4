"""Inference on NumPy arrays, with weights packed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.forking import new_call
from rnnkit.call.mask import Mask
from rnnkit.call.options import CallOptions
from rnnkit.call.steps import Steps, states_shape, steps_of
from rnnkit.cpu import masked
from rnnkit.cpu.layer import (
    DESCRIPTORS,
    contiguous,
    flat,
    groups_of,
    layers_of,
    new_array,
    pack,
    prepare_packing,
    with_scratch,
)
from rnnkit.cpu.reduced import check_instruction, pack_int8
from rnnkit.cpu.route import is_stepwise, reads_in_place, slabs_of, steps_of_one_call
from rnnkit.cpu.rows import LIST_BYTES, StepRows, rows_of, segment_of
from rnnkit.cpu.run import PreparedGroup, Run, final_states, forward_arrays, prepare_clearing, prepare_group
from rnnkit.cpu.scheduler import Scheduler
from rnnkit.cpu.stack import PreparedStepwiseCall, Stack, run_steps
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.operands import ForwardArrays

_OUTPUTS = 3  # layer outputs in memory at once: the input of a group of two layers, and their outputs
# Outputs of a layer that a call keeps for the next one and copies for its caller, instead of preparing all anew. With
# 0.5 MB a call takes 0.78 to 0.92 of the time, with 1 MB 0.92 to 0.99, with 1.5 MB 1 to 1.01, with 3 MB 1.05 to 1.08
# (tanh, H = 16 to 128, N = 8 and 32, one and two directions, Emerald Rapids); with 1.2 and 1.6 MB 0.96 to 0.99, with
# 3 MB 1 (all modes, H = 64 to 256, N = 32, Zen 4).
_KEPT_BYTES = 7 << 18
_LINE_BYTES, _SHARED_BYTES = 64, 1024  # of a cache line; rows that are multiples of this apart share sets of a cache


def stepwise_calls(desc: RNNDescriptor, steps: Steps, in_place: bool | None = None) -> PreparedStepwiseCall | None:
    """Return the runner of stepwise calls with flat weights; None if these steps do not run stepwise. `in_place` is by
    default as `reads_in_place` says."""
    if not is_stepwise(desc, steps):
        return None
    size = steps.seq_len, steps.batch_size
    return _stack_of(desc, reads_in_place(desc, *size) if in_place is None else in_place).sequences(*size)


@lru_cache(DESCRIPTORS)  # a fast path for calls without options
def _stepwise_calls(desc: RNNDescriptor, seq_len: int, batch_size: int) -> PreparedStepwiseCall | None:
    return stepwise_calls(desc, steps_of(seq_len, batch_size))


def run_stepwise(desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, options: CallOptions) -> Any:
    """Run a call stepwise with flat weights; None if it does not run stepwise."""
    steps, mask, listed = options.steps, options.mask, options.steps.listed
    runner = stepwise_calls(desc, steps) if listed else _stepwise_calls(desc, steps.seq_len, steps.batch_size)
    if runner is None:
        return None
    if not listed and mask is None:
        return runner.run(x, hx, cx, w)
    return _of_all_steps(desc, mask, run_steps(runner, steps, _taken(desc, mask, x), hx, cx, w), hx)


def _taken(desc: RNNDescriptor, mask: Mask | None, x: np.ndarray, take: Callable[..., np.ndarray] = new_array) -> Any:
    """Return the steps of x that run."""
    return x if mask is None else masked.taken(desc, mask, x, take)


def _of_all_steps(desc: RNNDescriptor, mask: Mask | None, results: tuple[Any, Any, Any], hx: Any) -> Any:
    """Return y, hy and cy, with y of all steps."""
    y, hy, cy = results
    return (y if mask is None else masked.outputs_of_all(desc, mask, y, hx)), hy, cy


@lru_cache(2 * DESCRIPTORS)
def _stack_of(desc: RNNDescriptor, in_place: bool) -> Stack:
    return Stack(desc, layers_of(desc, None, in_place), None, in_place)


def _apart(columns: int, itemsize: int) -> int:
    """Return the columns of a row of gates: a cache line more where rows would share sets (32 rows, H = 128 to 512,
    Emerald Rapids: float32 and int8 take 0.98 to 1 of the time, bfloat16 0.94)."""
    return columns if columns * itemsize % _SHARED_BYTES else columns + _LINE_BYTES // itemsize


def keeps(desc: RNNDescriptor, steps: Steps) -> bool:
    """Return whether calls by layer of this size keep arrays and prepared kernel calls for the next one."""
    count, width = steps.seq_len * steps.batch_size, desc.num_directions * desc.output_size
    nbytes = count * (width * desc.np_dtype.itemsize + (LIST_BYTES if steps.listed else 0))
    return nbytes <= _KEPT_BYTES and len([*slabs_of(layers_of(desc), steps)]) == 1


class Kept(NamedTuple):
    """What is prepared for calls of one kind."""

    hidden: np.ndarray  # of the last layer, an array of `states_shape`
    calls: list[Callable[[ForwardArrays], None]]
    clearing: list[Callable[[int], None]]
    states: tuple[int, ...]  # shape of hy
    cells: tuple[int, ...] | None  # shape of cy


class PackedNetwork(Stack):
    """The packed weights of a network, and the calls that use them; thread-safe. With `in_place` each call reads the
    flat weights that it is given.

    A call of the previous call's size whose outputs are small, at most `_KEPT_BYTES` a layer, reuses arrays and
    prepared kernel calls. This saves 25 us of Python for a layer or two, less up to 10 us to copy y (Zen 5).
    """

    def __init__(
        self, desc: RNNDescriptor, w: np.ndarray, precision: str | None = None, in_place: bool = False
    ) -> None:
        layers = layers_of(desc, precision, in_place)
        check_instruction("prepare", precision)
        if in_place:
            packed = np.empty(int(layers[-1].offsets[-1]), desc.np_dtype)  # sums of biases, which each call computes
        else:
            packed = (pack_int8 if precision == "int8" else pack)(desc, w, Arena(), precision)
        super().__init__(desc, layers, packed, in_place)
        self._groups = groups_of(desc, False, precision, in_place)
        self._columns = _apart(layers[0].columns, desc.np_dtype.itemsize)
        self._packing: list[Callable[[np.ndarray], None]] = []
        self.nbytes = packed.nbytes  # and of the memory of calls
        self._last: tuple[Steps, int, StepRows, Kept] | None = None  # of `run_exclusively`

    def packing(self) -> list[Callable[[np.ndarray], None]]:
        """Return the kernel calls that pack new weights, flat, into the same memory; none if they are read in place."""
        if not self._packing and not self._in_place:
            self._packing = prepare_packing(with_scratch(self.weights, self._form, 0, 0, 0, new_array), self._layers)
        return self._packing

    def repack(self, w: np.ndarray) -> None:
        """Pack new weights, except those of int8, into the same memory. No call may be running.

        New memory, which the system clears first, would take ten times as long (1.1 instead of 0.1 ms, 370,000
        weights).
        """
        w = flat(w)
        for call in self.packing():
            call(w)

    def infer(
        self,
        x: np.ndarray,
        hx: Any,
        cx: Any,
        options: CallOptions,
        w: np.ndarray | None = None,
        may_be_stepwise: bool = True,
    ) -> tuple[Any, Any, Any]:
        """Run the network over all steps and return y, hy and cy; w are the flat weights, with `in_place` only.

        A call that does not run stepwise buffers the gates of a few steps at a time. Stacked layers of one direction
        also process the sequence a slab of steps at a time, so that the lower layers' outputs stay small, too.
        """
        desc, steps, mask, call = self._desc, options.steps, options.mask, new_call()
        if may_be_stepwise and is_stepwise(desc, steps):
            runner = self.sequences(steps.seq_len, steps.batch_size)
            return _of_all_steps(desc, mask, run_steps(runner, steps, _taken(desc, mask, x), hx, cx), hx)
        w, self._last = self._no_w if w is None else w, None  # its rows may become those of another number of steps
        try:
            arena = self._memory.borrow(call)
            x = _taken(desc, mask, x, arena.take)
            if keeps(desc, steps):
                limit = steps_of_one_call(desc, steps.batch_size)
                rows = rows_of(steps, arena, limit, hx, cx)
                if arena.is_repeat(rows):
                    hx, cx = (None if one is None else contiguous(one) for one in (hx, cx))
                    kept = self._kept_of(arena, rows, thread_pool.wanted_size())
                    y, hy, cy = self._run_kept(rows, kept, contiguous(x), hx, cx, w)
                    return _of_all_steps(desc, mask, (y.copy() if mask is None else y, hy, cy), hx)
                rows.reset_to = None, None  # do not keep the caller's hx and cx
            new = new_array if mask is None else arena.take
            return _of_all_steps(desc, mask, self._run_slabs(arena, steps, x, hx, cx, w, new), hx)
        finally:
            self._memory.borrowers.discard(call)

    def run_exclusively(
        self,
        steps: Steps,
        x: np.ndarray | int,
        hx: np.ndarray | int | None,
        cx: np.ndarray | int | None,
        w: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Like `infer` by layer, of a size that `keeps` arrays, where no other call can use this object. Arrays are
        C-contiguous, or their addresses."""
        last, threads = self._last, thread_pool.wanted_size()
        if last is None or last[0] is not steps or last[1] != threads:  # else as the call before
            arena = self._memory.arena
            rows = rows_of(steps, arena, steps_of_one_call(self._desc, steps.batch_size))
            last = self._last = steps, threads, rows, self._kept_of(arena, rows, threads)
        y, hy, cy = self._run_kept(last[2], last[3], x, hx, cx, self._no_w if w is None else w)
        return y.copy(), hy, cy

    def kept(self, rows: StepRows, threads: int) -> Kept:
        """Prepare calls of these steps; no other call may use this object."""
        return self._kept(self._memory.arena, rows, threads)

    def _kept_of(self, arena: Arena, rows: StepRows, threads: int) -> Kept:
        return arena.cached("infer", (rows, threads), self._kept, arena, rows, threads)

    def _run_kept(self, rows: StepRows, kept: Kept, x: Any, hx: Any, cx: Any, w: np.ndarray) -> tuple[Any, Any, Any]:
        """Run a call in arrays and by kernel calls that are kept; y is one of them."""
        hy = np.empty(kept.states, self._dtype)
        cy = None if kept.cells is None else np.empty(kept.cells, self._dtype)
        arrays = ForwardArrays(x, w, 0 if hx is None else hx, 0 if cx is None else cx, hy, 0 if cy is None else cy)
        for call in kept.calls:
            call(arrays)
        for clear in kept.clearing:
            clear(0)
        rows.reset_to = None, None
        return rows.after(kept.hidden), hy, cy

    def _kept(self, arena: Arena, rows: StepRows, threads: int) -> Kept:
        desc = self._desc
        shape = states_shape(rows.capacity, rows.batch_size, desc.num_directions, rows.with_resets)
        hidden = arena.take("y", (*shape, desc.num_directions * desc.output_size), self._dtype)
        packed = self.with_scratch(rows.capacity * rows.batch_size, threads, arena.take)
        scheduler = Scheduler(rows, self._dtype.itemsize, threads, self._in_place)
        groups = self._prepare_groups(scheduler, packed, hidden, arena.take, arena.take)
        calls = [call for _, calls in groups for call in calls]
        clearing = prepare_clearing([hidden], rows, of_states=True)
        self.nbytes = self.weights.nbytes + self._memory.nbytes
        states = desc.num_pseudo_layers, rows.batch_size, desc.output_size
        cells = (*states[:2], desc.states_size) if desc.has_cell_state else None
        return Kept(hidden, calls, clearing, states, cells)

    def _run_slabs(
        self,
        arena: Arena,
        steps: Steps,
        x: np.ndarray,
        hx: Any,
        cx: Any,
        w: np.ndarray,
        new: Callable[..., np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Run a call a slab of steps after the other; y is in an array from `new`."""
        desc, threads, reset_to = self._desc, thread_pool.wanted_size(), (hx, cx)
        extra, batch_size = states_shape(0, steps.batch_size, desc.num_directions, steps.resets is not None)
        shape = steps.seq_len + extra, batch_size, desc.num_directions * desc.output_size
        hidden = new("y", shape, x.dtype)
        packed = self.with_scratch(steps.seq_len * batch_size, threads, arena.take)
        clearing: list[Callable[[int], None]] = []
        for start, stop in slabs_of(self._layers, steps):
            rows, out = segment_of(steps, start, stop, None, *reset_to), hidden[start : stop + extra]
            hy, cy = final_states(desc, batch_size)
            arrays = forward_arrays(x[start:stop], w, hx, cx, hy, cy)
            scheduler = Scheduler(rows, x.itemsize, threads, self._in_place)
            for _, calls in self._prepare_groups(scheduler, packed, out, arena.take, new_array):
                for run in calls:
                    run(arrays)
                del calls, run  # free their arrays before the next group allocates
            hx, cx = hy, cy
            for clear in clearing:  # of the previous slab, whose last step held this slab's initial states
                clear(0)
            clearing = prepare_clearing([out], rows, of_states=True)
        for clear in clearing:
            clear(0)
        return steps.after(hidden), hx, cx

    def _prepare_groups(
        self,
        scheduler: Scheduler,
        packed: Any,
        out: np.ndarray,
        take: Callable[..., np.ndarray],
        new: Callable[..., np.ndarray],
    ) -> Iterator[PreparedGroup]:
        """Prepare all layers, one group after another; the last writes into `out`.

        Groups share the arrays that they `take`. Their outputs are from `new`: fresh arrays, or reused ones.
        """
        desc, steps, below = self._desc, scheduler.steps, None
        for group in self._groups:
            schedule, count = scheduler.forward(group, keeps_gates=False), len(group)
            buffers = count if schedule.split else 1
            gates = take("gates", (buffers, scheduler.chunk_rows(schedule), self._columns), out.dtype)
            double_buffered = not steps.with_resets
            places = 2 if double_buffered else len(out)
            shape = (count, places, steps.batch_size, desc.states_size) if desc.has_cell_state else (count, 0)
            cells, runs = take("cells", shape, out.dtype), []
            for number, layer in enumerate(group):
                if layer.direction == 0:
                    top = layer.layer == desc.num_layers - 1
                    hidden = out if top else new(f"hidden_{layer.layer % _OUTPUTS}", out.shape, out.dtype)
                    source, below = below, steps.states_after(hidden)
                runs.append(Run(layer, source, hidden, gates[number % buffers], cells[number], double_buffered))
            yield prepare_group(runs, scheduler, schedule, packed)
