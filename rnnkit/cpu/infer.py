"""Inference on NumPy arrays: the weights of a network, packed once, and running it with them."""

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
from rnnkit.cpu.layer import DESCRIPTORS, flat, groups_of, layers_of, pack, ready_to_pack
from rnnkit.cpu.planner import Planner, reads_in_place, slabs_of
from rnnkit.cpu.reduced import pack_reduced
from rnnkit.cpu.rows import LIST_BYTES, rows_of, segment_of
from rnnkit.cpu.run import Calls, Run, final_states, given, ready_group, ready_to_clear
from rnnkit.cpu.stack import Sequences, Stack, new_array, run_steps
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import num_weights
from rnnkit.kernels.machine import team

# Words of the weights times rows of all steps up to which a call is run a step at a time through all layers: Python
# takes 60 us less. On one thread that way is as soon done with 2^26; on two the steps of a longer call are shared out
# better.
_BRIEF = 1 << 23
_OUTPUTS = 3  # that there are at a time: what a group of two layers reads, and what they write


def is_brief(desc: RNNDescriptor, steps: Steps) -> bool:
    """Whether a call is run a step at a time through all layers."""
    count = steps.seq_len * steps.batch_size
    is_short = count * num_weights(desc) <= _BRIEF or reads_in_place(desc, steps)
    from_hx = steps.resets is not None and steps.resets.from_hx
    return desc.num_directions == 1 and count > 0 and is_short and not from_hx


def brief_calls(desc: RNNDescriptor, steps: Steps) -> Sequences | None:
    """What runs brief calls with the flat weights; None where these are not brief."""
    if not is_brief(desc, steps):
        return None
    return _stack_of(desc, reads_in_place(desc, steps)).sequences(steps.seq_len, steps.batch_size)


@lru_cache(DESCRIPTORS)  # of calls without options it is found sooner
def _brief_calls(desc: RNNDescriptor, seq_len: int, batch_size: int) -> Sequences | None:
    return brief_calls(desc, steps_of(seq_len, batch_size))


def run_brief(desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, steps: Steps) -> Any:
    """The results of a brief call, which reads these weights where they are; None of a longer one."""
    brief = brief_calls(desc, steps) if steps.listed else _brief_calls(desc, steps.seq_len, steps.batch_size)
    if brief is None:
        return None
    return run_steps(brief, steps, x, hx, cx, w) if steps.listed else brief.run(x, hx, cx, w)


@lru_cache(2 * DESCRIPTORS)
def _stack_of(desc: RNNDescriptor, in_place: bool) -> Stack:
    return Stack(desc, layers_of(desc, None, in_place), None, in_place)


class Inference(Stack):
    """The weights of a network, packed, and what runs with them; safe to use from any number of threads.

    A call of the last one's size with small outputs, of `KEPT_BYTES` a layer, works in arrays that are kept, and so is
    what it tells the kernels. Python takes 25 us less for a layer or two; copying y takes up to 10 us of these (Zen 5).
    """

    def __init__(self, desc: RNNDescriptor, w: np.ndarray, precision: str | None = None) -> None:
        packed = pack(desc, w, Arena()) if precision is None else pack_reduced(desc, w, precision)
        super().__init__(desc, layers_of(desc, precision), packed)
        self._groups, self._columns = groups_of(desc, precision=precision), self._layers[0].columns

    def repack(self, w: np.ndarray) -> None:
        """Take other weights, as float32 or float64, into the same memory, while no call is at work.

        New memory, which the system clears first, would take ten times as long (1.1 in place of 0.1 ms, 370,000
        weights).
        """
        for call in ready_to_pack(self.weights, self._layers):
            call(flat(w))

    def infer(self, x: np.ndarray, hx: Any, cx: Any, options: CallOptions) -> tuple[Any, Any, Any]:
        """Run the network over all steps and keep nothing but y, hy and cy, and the arrays of a small call.

        Where that is more than a brief call, the gates of a few steps at a time are buffered. Stacked layers of one
        direction also go through the sequence a slab of steps at a time, so that of the lower layers' outputs, too, no
        more is in memory.
        """
        desc, directions, steps = self._desc, self._desc.num_directions, options.steps
        if is_brief(desc, steps):
            return run_steps(self.sequences(*x.shape[:2]), steps, x, hx, cx)
        places = states_shape(steps.seq_len, steps.batch_size, directions, steps.resets is not None)
        shape, behind = (*places, directions * desc.output_size), places[0] - steps.seq_len
        count, threads, slabs = steps.seq_len * steps.batch_size, team.wanted_size(), [*slabs_of(self._layers, steps)]
        nbytes, call = math.prod(shape) * x.itemsize + (LIST_BYTES * count if steps.listed else 0), new_call()
        reset_to = hx, cx
        try:
            arena = self._memory.borrow(call)
            packed = self.with_scratch(count, threads, arena.take)
            whole = rows_of(steps, arena, *reset_to) if len(slabs) == 1 and nbytes <= KEPT_BYTES else None
            is_kept = whole is not None and arena.is_repeat(whole)
            hidden, clearing = arena.take("y", shape, x.dtype) if is_kept else np.empty(shape, x.dtype), []
            for start, stop in slabs:
                rows = whole if is_kept else segment_of(steps, start, stop, None, *reset_to)
                out, (hy, cy) = hidden[start : stop + behind], final_states(desc, steps.batch_size)
                own = given(x[start:stop], self._no_w, hx, cx, hy, cy)
                groups, clearing_next = self._laid_out(Planner(rows, x.itemsize, threads), packed, out, arena, is_kept)
                for _, calls in groups:
                    for run in calls:
                        run(own)
                    del calls, run  # and their arrays, before there are the next ones'
                hx, cx = hy, cy
                for clear in clearing:  # of the slab before, in whose last step this one's initial states stood
                    clear()
                clearing = clearing_next
            for clear in clearing:
                clear()
            if whole is not None:
                whole.reset_to = None, None  # the caller's
            y = steps.after(hidden)
            return y.copy() if is_kept else y, hx, cx
        finally:
            self._memory.borrowers.discard(call)

    def _laid_out(
        self, planner: Planner, packed: Any, out: np.ndarray, arena: Arena, is_kept: bool
    ) -> tuple[Iterable[Calls], list[Callable[[], None]]]:
        """The groups of layers over the steps, and the calls that clear the padding; kept for the next call of this
        size, or one group after another."""

        def make() -> tuple[Iterable[Calls], list[Callable[[], None]]]:
            clearing = ready_to_clear([out], planner.steps, of_states=True)
            groups = self._ready_groups(planner, packed, out, arena.take, arena.take if is_kept else new_array)
            return list(groups) if is_kept else groups, clearing

        return arena.cached("infer", (planner.steps, planner.threads), make) if is_kept else make()

    def _ready_groups(
        self, planner: Planner, packed: Any, out: np.ndarray, take: Callable[..., np.ndarray],
        new: Callable[..., np.ndarray],
    ) -> Iterator[Calls]:
        """Lay out all layers over the steps, one group after another; the last writes into `out`.

        Groups share the arrays that they `take`. What one puts out is `new`: the caller's to let go, or to use again.
        """
        desc, steps, below = self._desc, planner.steps, None
        for group in self._groups:
            schedule, count = planner.forward(group, keeps_gates=False), len(group)
            buffers = count if schedule.split else 1
            gates = take("gates", (buffers, planner.chunk_rows(schedule), self._columns), out.dtype)
            passing = not steps.with_resets
            places = 2 if passing else len(out)
            shape = (count, places, steps.batch_size, desc.states_size) if desc.has_cell_state else (count, 0)
            cells, runs = take("cells", shape, out.dtype), []
            for number, layer in enumerate(group):
                if layer.direction == 0:
                    top = layer.layer == desc.num_layers - 1
                    hidden = out if top else new(f"hidden_{layer.layer % _OUTPUTS}", out.shape, out.dtype)
                    source, below = below, steps.after(hidden)
                runs.append(Run(layer, source, hidden, gates[number % buffers], cells[number], passing))
            yield ready_group(runs, planner, schedule, packed)
