"""Inference on NumPy arrays, with weights packed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from rnnkit.call.arena import KEPT_BYTES, Arena
from rnnkit.call.forking import new_call
from rnnkit.call.options import CallOptions
from rnnkit.call.steps import Steps, states_shape, steps_of
from rnnkit.cpu.layer import DESCRIPTORS, flat, groups_of, layers_of, pack, prepare_packing
from rnnkit.cpu.reduced import pack_reduced
from rnnkit.cpu.route import is_stepwise, reads_in_place, slabs_of, steps_of_one_call
from rnnkit.cpu.rows import LIST_BYTES, rows_of, segment_of
from rnnkit.cpu.run import PreparedGroup, Run, final_states, forward_arrays, prepare_clearing, prepare_group
from rnnkit.cpu.scheduler import Scheduler
from rnnkit.cpu.stack import PreparedStepwiseCall, Stack, new_array, run_steps
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.machine import thread_pool

_OUTPUTS = 3  # layer outputs in memory at once: the input of a group of two layers, and their outputs


def stepwise_calls(desc: RNNDescriptor, steps: Steps) -> PreparedStepwiseCall | None:
    """Return the runner of stepwise calls with flat weights; None if these steps do not run stepwise."""
    if not is_stepwise(desc, steps):
        return None
    size = steps.seq_len, steps.batch_size
    return _stack_of(desc, reads_in_place(desc, *size)).sequences(*size)


@lru_cache(DESCRIPTORS)  # a fast path for calls without options
def _stepwise_calls(desc: RNNDescriptor, seq_len: int, batch_size: int) -> PreparedStepwiseCall | None:
    return stepwise_calls(desc, steps_of(seq_len, batch_size))


def run_stepwise(desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, steps: Steps) -> Any:
    """Run a call stepwise with flat weights; None if it does not run stepwise."""
    runner = stepwise_calls(desc, steps) if steps.listed else _stepwise_calls(desc, steps.seq_len, steps.batch_size)
    if runner is None:
        return None
    return run_steps(runner, steps, x, hx, cx, w) if steps.listed else runner.run(x, hx, cx, w)


@lru_cache(2 * DESCRIPTORS)
def _stack_of(desc: RNNDescriptor, in_place: bool) -> Stack:
    return Stack(desc, layers_of(desc, None, in_place), None, in_place)


class PackedNetwork(Stack):
    """The packed weights of a network, and the calls that use them; thread-safe. With `in_place` each call reads the
    flat weights that it is given.

    A call of the previous call's size whose outputs are small, at most `KEPT_BYTES` a layer, reuses arrays and prepared
    kernel calls. This saves 25 us of Python for a layer or two, less up to 10 us to copy y (Zen 5).
    """

    def __init__(
        self, desc: RNNDescriptor, w: np.ndarray, precision: str | None = None, in_place: bool = False
    ) -> None:
        layers = layers_of(desc, precision, in_place)
        if in_place:
            packed = np.empty(int(layers[-1].offsets[-1]), desc.np_dtype)  # sums of biases, which each call computes
        else:
            packed = pack(desc, w, Arena()) if precision is None else pack_reduced(desc, w, precision)
        super().__init__(desc, layers, packed, in_place)
        self._groups, self._columns = groups_of(desc, False, precision, in_place), layers[0].columns
        self._packing: list[Callable[[np.ndarray], None]] = []

    def repack(self, w: np.ndarray) -> None:
        """Pack new weights, float32 or float64, into the same memory. No call may be running.

        New memory, which the system clears first, would take ten times as long (1.1 instead of 0.1 ms, 370,000
        weights).
        """
        if not self._packing:
            self._packing = prepare_packing(self.weights, self._layers)
        w = flat(w)
        for call in self._packing:
            call(w)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights and of the memory of calls."""
        return self.weights.nbytes + self._memory.nbytes

    def infer(
        self, x: np.ndarray, hx: Any, cx: Any, options: CallOptions, w: np.ndarray | None = None,
        may_be_stepwise: bool = True,
    ) -> tuple[Any, Any, Any]:
        """Run the network over all steps and return y, hy and cy; w are the flat weights, with `in_place` only.

        A call that does not run stepwise buffers the gates of a few steps at a time. Stacked layers of one direction
        also process the sequence a slab of steps at a time, so that the lower layers' outputs stay small, too.
        """
        desc, directions, steps = self._desc, self._desc.num_directions, options.steps
        if may_be_stepwise and is_stepwise(desc, steps):
            return run_steps(self.sequences(*x.shape[:2]), steps, x, hx, cx)
        extra, batch_size = states_shape(0, steps.batch_size, directions, steps.resets is not None)
        shape = steps.seq_len + extra, batch_size, directions * desc.output_size
        count, threads = steps.seq_len * steps.batch_size, thread_pool.wanted_size()
        slabs = [*slabs_of(self._layers, steps)]
        nbytes, call = math.prod(shape) * x.itemsize + (LIST_BYTES * count if steps.listed else 0), new_call()
        reset_to = hx, cx
        try:
            arena = self._memory.borrow(call)
            packed = self.with_scratch(count, threads, arena.take)
            limit = steps_of_one_call(desc, batch_size)
            whole = rows_of(steps, arena, limit, *reset_to) if len(slabs) == 1 and nbytes <= KEPT_BYTES else None
            is_kept = whole is not None and arena.is_repeat(whole)
            if is_kept:
                hidden = arena.take("y", (whole.capacity + extra, *shape[1:]), x.dtype)
            else:
                hidden = np.empty(shape, x.dtype)
            clearing: list[Callable[[], None]] = []
            for start, stop in slabs:
                rows = whole if is_kept else segment_of(steps, start, stop, None, *reset_to)
                out = hidden if is_kept else hidden[start : stop + extra]
                hy, cy = final_states(desc, steps.batch_size)
                arrays = forward_arrays(x[start:stop], self._no_w if w is None else w, hx, cx, hy, cy)
                groups, clearing_next = self._prepare(
                    Scheduler(rows, x.itemsize, threads, self._in_place), packed, out, arena, is_kept
                )
                for _, calls in groups:
                    for run in calls:
                        run(arrays)
                    del calls, run  # free their arrays before the next group allocates
                hx, cx = hy, cy
                for clear in clearing:  # of the previous slab, whose last step held this slab's initial states
                    clear()
                clearing = clearing_next
            for clear in clearing:
                clear()
            if whole is not None:
                whole.reset_to = None, None  # do not keep the caller's hx and cx
            y = steps.after(hidden)
            return y.copy() if is_kept else y, hx, cx
        finally:
            self._memory.borrowers.discard(call)

    def _prepare(
        self, scheduler: Scheduler, packed: Any, out: np.ndarray, arena: Arena, is_kept: bool
    ) -> tuple[Iterable[PreparedGroup], list[Callable[[], None]]]:
        """Return the prepared groups of layers, and the calls that clear the padding: cached for the next call of this
        size, or generated one group at a time."""

        def make() -> tuple[Iterable[PreparedGroup], list[Callable[[], None]]]:
            clearing = prepare_clearing([out], scheduler.steps, of_states=True)
            groups = self._prepare_groups(scheduler, packed, out, arena.take, arena.take if is_kept else new_array)
            return list(groups) if is_kept else groups, clearing

        return arena.cached("infer", (scheduler.steps, scheduler.threads), make) if is_kept else make()

    def _prepare_groups(
        self, scheduler: Scheduler, packed: Any, out: np.ndarray, take: Callable[..., np.ndarray],
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
