"""Inference on NumPy arrays: the weights of a network, packed once, and running it with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rnnkit.cpu.layer import dense, flat, groups_of, layers_of, pack
from rnnkit.cpu.planner import Planner, grain_of, rows_for_grain, threads_of_step
from rnnkit.cpu.reduced import pack_reduced
from rnnkit.cpu.run import (
    Grid,
    ReadyGroup,
    Run,
    boundary_states,
    clear_padding,
    input_grid,
    no_input,
    outputs_of,
    ready_group,
    run_group,
)
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import stack
from rnnkit.kernels.machine import team
from rnnkit.kernels.machine.formats import ROWS_AT_ONCE, packed_as, scratch_words
from rnnkit.kernels.machine.tiles import ensure_compiled
from rnnkit.memory import Memory
from rnnkit.steps import Steps, row_numbers, steps_of

# Words of the weights times rows of all steps (10 us on one thread) up to which a call is run a step at a time through
# all layers: W is read in each, and Python takes 20 us less. Such a call is never shared out (`team._BRIEF_WORK`).
_BRIEF = 1 << 19
# Bytes of a layer's outputs up to which a call of the last one's size works in arrays that are kept, and so is what it
# tells the kernels. Python takes 25 us less for a layer or two; copying y takes up to 10 us of these (Zen 5).
_KEPT_BYTES = 1 << 18
_OUTPUTS = 3  # that there are at a time: what a group of two layers reads, and what they write
_ALL_STEPS = np.empty(0, np.int64)  # instead of lengths
_ROWS_OF_A_READ = 2  # a step of fewer rows takes as long as reading the weights does


def _new(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.empty(shape, dtype)


class Inference:
    """The weights of a network, packed, and what runs with them; safe to use from any number of threads."""

    def __init__(self, desc: RNNDescriptor, w: np.ndarray, weights: str | None = None) -> None:
        self._desc, self._layers, self._memory = desc, layers_of(desc, weights), Memory()
        self._groups, self._form = groups_of(desc, weights=weights), weights
        self.weights = pack(desc, w, self._memory) if weights is None else pack_reduced(desc, w, weights)
        self._products = [product for layer in self._layers for product in layer.products if product.gates]
        for product in self._products:
            ensure_compiled(self.weights.dtype, product.gates, weights)
        first = self._layers[0]
        dtype = self.weights.dtype
        self._kind, self._columns, self._no_cells = first.kind, first.columns, np.empty((0, 0, 0), dtype)
        zero = np.zeros(desc.hidden_size, dtype)
        self._rows_for_grain, self._grain = rows_for_grain(first, dtype.itemsize), grain_of(dtype.itemsize)
        self._fixed = first.cell, first.sizes, np.stack([layer.offsets for layer in self._layers])
        self._no_y = np.empty((0, 0), dtype)
        self._sizes = desc.num_layers, desc.output_size, desc.states_size if desc.has_cell else 0
        self._zeros, self._threads = zero, {}  # by the number of rows

    def buffers(self, batch: int, take: Callable[..., np.ndarray] = _new, places: int = 1) -> tuple[np.ndarray, ...]:
        """What a step of so many rows writes, taken as from a memory: the states after it, and its gates.

        Several steps have two `places` for the states, one behind the other.
        """
        dtype, (layers, outputs, cells) = self.weights.dtype, self._sizes
        hy, cy = take("hy", (places * layers, batch, outputs), dtype), self._no_cells
        if cells:
            cy = take("cy", (places * layers, batch, cells), dtype)
        return hy, cy, take("gates", (batch * self._columns,), dtype), self._with_scratch(batch, take)

    def _with_scratch(self, rows: int, take: Callable[..., np.ndarray]) -> Any:
        """The packed weights as the kernels take them, with scratch for as many rows as they take at a time."""
        if self._form is None:
            return self.weights
        rows = min(rows, ROWS_AT_ONCE)
        room = rows * max(scratch_words(self._form, product.depth) for product in self._products)
        scratch = take("scratch", (team.wanted_size() * room,), self.weights.dtype)
        return packed_as(self._form, self.weights, scratch, room, row_numbers(rows))

    def step(self, x: np.ndarray, hx: Any, cx: Any = None, buffers: Any = None) -> tuple[Any, Any, Any]:
        """Run all layers over one time step, in one call of a kernel; returns y, hy and cy, all in the buffers."""
        hy, cy, gates, packed = self.buffers(len(x)) if buffers is None else buffers
        if self._form is not None and packed.scratch.size < packed.room * team.wanted_size():
            packed = self._with_scratch(len(x), _new)  # the team has grown since
        self._run(x, hx, cx, self._no_y, (hy, cy, gates), packed, _ALL_STEPS)
        return hy[-1], hy, cy if self._sizes[2] else None

    def _run(
        self, x: np.ndarray, hx: Any, cx: Any, y: np.ndarray, written: tuple[np.ndarray, ...], packed: Any,
        lengths: np.ndarray,
    ) -> None:
        """Run all layers over the steps of x (T*N, I) and write y and hy, cy and gates, as `stack.run_stack` says."""
        dtype, batch, (layers, outputs, cells) = x.dtype, written[0].shape[1], self._sizes
        if hx is None:
            hx = np.zeros((layers, batch, outputs), dtype)
        if not cells:
            cx = self._no_cells
        elif cx is None:
            cx = np.zeros((layers, batch, cells), dtype)
        grain = self._grain if batch >= self._rows_for_grain else 0
        work = self.weights.size * (batch if batch > _ROWS_OF_A_READ else _ROWS_OF_A_READ)
        threads = self._threads.get(batch)
        if threads is None:
            threads = self._threads[batch] = threads_of_step(batch, self._layers, dtype.itemsize)
        arrays = dense(x), dense(hx), dense(cx), y, *written, row_numbers(batch), lengths
        team.run(stack.run_stack, self._kind, work, *self._fixed, packed, self._zeros, grain, threads, arrays)

    def _infer_brief(self, x: np.ndarray, hx: Any, cx: Any, steps: Steps) -> tuple[Any, Any, Any]:
        """Run the network of one direction over a few steps in one call of a kernel."""
        (seq_len, batch, size), (layers, outputs, cells) = x.shape, self._sizes
        y, lengths = np.empty((seq_len * batch, outputs), x.dtype), steps.lengths if steps.padded else _ALL_STEPS
        hy, cy, gates, packed = self.buffers(batch, places=min(seq_len, 2))
        self._run(x.reshape(seq_len * batch, size), hx, cx, y, (hy, cy, gates), packed, dense(lengths))
        first = (seq_len - 1) % 2 * layers
        last = slice(first, first + layers)
        return y.reshape(seq_len, batch, outputs), hy[last], cy[last] if cells else None

    def infer(self, x: np.ndarray, hx: Any, cx: Any, steps: Steps) -> tuple[Any, Any, Any]:
        """Run the network over all steps and keep nothing but y, hy and cy, and the arrays of a small call.

        Where that is more than a brief call, the gates of a few steps at a time are buffered. Stacked layers of one
        direction also go through the sequence a slab of steps at a time, so that of the lower layers' outputs, too, no
        more is in memory.
        """
        desc, directions = self._desc, self._desc.num_directions
        if directions == 1 and 0 < steps.seq_len * steps.batch_size * self.weights.size <= _BRIEF:
            return self._infer_brief(x, hx, cx, steps)
        shape = steps.seq_len + directions, steps.batch_size, directions * desc.output_size
        call, planner = object(), Planner(steps, x.itemsize)
        try:
            memory = self._memory.borrow(call)
            packed = self._with_scratch(steps.seq_len * steps.batch_size, memory.take)
            slabs = list(planner.slabs(self._layers))
            small = steps.kept and len(slabs) == 1 and math.prod(shape) * x.itemsize <= _KEPT_BYTES
            if small and memory.comes_again(steps):
                return self._run_kept(x, hx, cx, planner, shape, packed, memory)
            hidden = np.empty(shape, x.dtype)
            for start, stop in slabs:
                own = planner if stop - start == steps.seq_len else Planner(_part(steps, start, stop), x.itemsize)
                states = boundary_states(desc, hx, cx, steps.batch_size)
                out, source = hidden[start : stop + directions], input_grid(x[start:stop])
                for ready in self._ready_groups(source, own, out, memory.take, _new):
                    run_group(ready, packed, states)
                    del ready  # and its arrays, before there are the next one's
                hx, cx = states.hy, states.cy
        finally:
            self._memory.borrowers.discard(call)
        clear_padding(hidden, steps, 1)
        return hidden[1 : steps.seq_len + 1], hx, cx

    def _run_kept(
        self, x: np.ndarray, hx: Any, cx: Any, planner: Planner, shape: tuple[int, ...], packed: Any, memory: Memory
    ) -> tuple[Any, Any, Any]:
        """Run the network in arrays that the memory keeps, by what was laid out for the last call of this size."""

        def make() -> tuple[np.ndarray, list[ReadyGroup]]:
            hidden = memory.take("y", shape, x.dtype)
            source = input_grid(no_input(self._desc))
            return hidden, list(self._ready_groups(source, planner, hidden, memory.take, memory.take))

        hidden, groups = memory.prepared("infer", (planner.steps, planner.threads), make)
        states, x = boundary_states(self._desc, hx, cx, planner.steps.batch_size), flat(x)
        for ready in groups:
            run_group(ready, packed, states, x)
        return hidden[1 : planner.steps.seq_len + 1].copy(), states.hy, states.cy

    def _ready_groups(
        self, below: Grid, planner: Planner, out: np.ndarray, take: Callable[..., np.ndarray],
        new: Callable[..., np.ndarray],
    ) -> Iterator[ReadyGroup]:
        """Lay out all layers over the steps, one group after another, from what is `below` the first into `out`.

        Groups share the arrays that they `take`. What one puts out is `new`: the caller's to let go, or to use again.
        """
        desc, batch = self._desc, planner.steps.batch_size
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
            yield ready_group(runs, planner, schedule)


def _part(steps: Steps, start: int, stop: int) -> Steps:
    count = stop - start
    return steps_of(count, steps.batch_size, np.clip(steps.lengths - start, 0, count) if steps.padded else None)
