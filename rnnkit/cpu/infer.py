"""Inference on NumPy arrays: the weights of a network, packed once, and running it with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rnnkit.cpu.layer import flat, groups_of
from rnnkit.cpu.planner import Planner, slabs_of
from rnnkit.cpu.rows import LIST_BYTES, rows_of, segment_of
from rnnkit.cpu.run import (
    ReadyGroup,
    Run,
    boundary_states,
    input_of_call,
    outputs_of,
    ready_group,
    ready_to_clear,
    run_group,
)
from rnnkit.cpu.stack import KEPT_BYTES, StackSteps, new_array
from rnnkit.descriptor import RNNDescriptor
from rnnkit.forking import new_call
from rnnkit.kernels.machine import team
from rnnkit.memory import Memory
from rnnkit.options import CallOptions

# Words of the weights times rows of all steps (10 us on one thread) up to which a call is run a step at a time through
# all layers: W is read in each, and Python takes 20 us less.
_BRIEF = 1 << 19
_OUTPUTS = 3  # that there are at a time: what a group of two layers reads, and what they write


class Inference(StackSteps):
    """The weights of a network, packed, and what runs with them; safe to use from any number of threads.

    A call of the last one's size with small outputs, of `KEPT_BYTES` a layer, works in arrays that are kept, and so is
    what it tells the kernels. Python takes 25 us less for a layer or two; copying y takes up to 10 us of these (Zen 5).
    """

    def __init__(self, desc: RNNDescriptor, w: np.ndarray, weights: str | None = None) -> None:
        super().__init__(desc, w, weights)
        self._groups, self._columns = groups_of(desc, weights=weights), self._layers[0].columns

    def infer(self, x: np.ndarray, hx: Any, cx: Any, options: CallOptions) -> tuple[Any, Any, Any]:
        """Run the network over all steps and keep nothing but y, hy and cy, and the arrays of a small call.

        Where that is more than a brief call, the gates of a few steps at a time are buffered. Stacked layers of one
        direction also go through the sequence a slab of steps at a time, so that of the lower layers' outputs, too, no
        more is in memory.
        """
        desc, directions, steps = self._desc, self._desc.num_directions, options.steps
        if directions == 1 and 0 < steps.seq_len * steps.batch_size * self.weights.size <= _BRIEF:
            return self.steps(x, hx, cx, steps)
        shape, call = (steps.seq_len + directions, steps.batch_size, directions * desc.output_size), new_call()
        count, threads, slabs = steps.seq_len * steps.batch_size, team.wanted_size(), [*slabs_of(self._layers, steps)]
        listed = LIST_BYTES * count if steps.padded else 0
        try:
            memory = self._memory.borrow(call)
            packed = self.with_scratch(count, threads, memory.take)
            if len(slabs) == 1 and math.prod(shape) * x.itemsize + listed <= KEPT_BYTES:
                rows = rows_of(steps, memory)
                if memory.comes_again(rows):
                    return self._run_kept(x, hx, cx, Planner(rows, x.itemsize, threads), shape, packed, memory)
            hidden, clearing = np.empty(shape, x.dtype), []
            for start, stop in slabs:
                rows, states = segment_of(steps, start, stop), boundary_states(desc, hx, cx, steps.batch_size)
                out, source = hidden[start : stop + directions], flat(x[start:stop])
                planner = Planner(rows, x.itemsize, threads)
                for ready in self._ready_groups(planner, packed, out, memory.take, new_array):
                    run_group(ready, states, source)
                    del ready  # and its arrays, before there are the next one's
                hx, cx = states.hy, states.cy
                for clear in clearing:  # of the slab before, in whose last step this one's initial states stood
                    clear()
                clearing = ready_to_clear([out], rows, 1)
            for clear in clearing:
                clear()
        finally:
            self._memory.borrowers.discard(call)
        return hidden[1 : steps.seq_len + 1], hx, cx

    def _run_kept(
        self, x: np.ndarray, hx: Any, cx: Any, planner: Planner, shape: tuple[int, ...], packed: Any, memory: Memory
    ) -> tuple[Any, Any, Any]:
        """Run the network in arrays that the memory keeps, by what was laid out for the last call of this size."""

        def make() -> tuple[np.ndarray, list[ReadyGroup], list[Callable[[], None]]]:
            hidden = memory.take("y", shape, x.dtype)
            groups = list(self._ready_groups(planner, packed, hidden, memory.take, memory.take))
            return hidden, groups, ready_to_clear([hidden], planner.steps, 1)

        hidden, groups, clearing = memory.prepared("infer", (planner.steps, planner.threads), make)
        states, x = boundary_states(self._desc, hx, cx, planner.steps.batch_size), flat(x)
        for ready in groups:
            run_group(ready, states, x)
        for clear in clearing:
            clear()
        return hidden[1 : planner.steps.seq_len + 1].copy(), states.hy, states.cy

    def _ready_groups(
        self, planner: Planner, packed: Any, out: np.ndarray, take: Callable[..., np.ndarray],
        new: Callable[..., np.ndarray],
    ) -> Iterator[ReadyGroup]:
        """Lay out all layers over the steps, one group after another; the last writes into `out`.

        Groups share the arrays that they `take`. What one puts out is `new`: the caller's to let go, or to use again.
        """
        desc, batch, below = self._desc, planner.steps.batch_size, input_of_call(self._desc)
        for group in self._groups:
            schedule, count = planner.forward(group, keeps_gates=False), len(group)
            buffers = count if schedule.split else 1
            gates = take("gates", (buffers, schedule.buffered_steps, batch, self._columns), out.dtype)
            shape = (count, 2, batch, desc.states_size) if desc.has_cell else (count, 0)
            cells, runs = take("cells", shape, out.dtype), []
            for number, layer in enumerate(group):
                if layer.direction == 0:
                    top = layer.layer == desc.num_layers - 1
                    hidden = out if top else new(f"hidden_{layer.layer % _OUTPUTS}", out.shape, out.dtype)
                    source, below = below, outputs_of(hidden)
                runs.append(Run(layer, source, hidden, gates[number % buffers], cells[number], passing=True))
            yield ready_group(runs, planner, schedule, packed)
