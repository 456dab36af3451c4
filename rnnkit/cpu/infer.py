"""Inference on NumPy arrays: the weights of a network, packed once, and running it with them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from rnnkit.cpu.layer import DESCRIPTORS, dense, groups_of, layers_of, pack
from rnnkit.cpu.planner import chunk_of, piece_of, rows_for_pieces, sharing_of
from rnnkit.cpu.run import Grid, Run, clear_padding, input_grid, outer, outputs_of, run_group
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import stack
from rnnkit.kernels.machine import team
from rnnkit.steps import Steps, row_numbers, steps_of
from rnnkit.workspace import Memory

_ROWS_OF_A_READ = 2  # a step of fewer rows takes as long as reading the weights does


class Inference:
    """The weights of a network, packed, and what runs with them; safe to use from any number of threads."""

    def __init__(self, desc: RNNDescriptor, w: np.ndarray) -> None:
        self._desc, self._groups, self._memory = desc, groups_of(desc), Memory()
        self.weights = pack(desc, w, self._memory)
        first = layers_of(desc)[0]
        dtype = self.weights.dtype
        self._kind, self._columns, self._no_cells = first.kind, first.columns, np.empty((0, 0, 0), dtype)
        zero = np.zeros(desc.hidden_size, dtype)
        self._rows_for_pieces, self._piece = rows_for_pieces(first, dtype.itemsize), piece_of(dtype.itemsize)
        self._fixed = first.cell, first.sizes, _places_of_layers(desc), self.weights, zero

    def step(self, x: np.ndarray, hx: Any, cx: Any) -> tuple[Any, Any, Any]:
        """Run all layers over one time step, in one call of a kernel; returns y, hy and cy."""
        desc, dtype, batch = self._desc, x.dtype, len(x)
        shape = desc.num_layers, batch, desc.output_size
        hx = np.zeros(shape, dtype) if hx is None else dense(hx)
        hy, cy = np.empty(shape, dtype), self._no_cells
        if desc.has_cell:
            shape = desc.num_layers, batch, desc.hidden_size
            cx = np.zeros(shape, dtype) if cx is None else dense(cx)
            cy = np.empty(shape, dtype)
        piece = self._piece if batch >= self._rows_for_pieces else 0
        work = self.weights.size * (batch if batch > _ROWS_OF_A_READ else _ROWS_OF_A_READ)
        team.run(
            stack.step_stack, self._kind, work, *self._fixed, piece, dense(x), hx, cx if desc.has_cell else cy, hy, cy,
            np.empty(batch * self._columns, dtype), row_numbers(batch)
        )
        return hy[-1], hy, cy if desc.has_cell else None

    def infer(self, x: np.ndarray, hx: Any, cx: Any, steps: Steps) -> tuple[Any, Any, Any]:
        """Run the network over all steps and keep nothing but y, hy and cy.

        The gates of a few steps at a time are held. Stacked layers of one direction also go through the sequence a span
        of steps at a time, so that of the lower layers' outputs, too, no more is held.
        """
        desc, directions = self._desc, self._desc.num_directions
        hidden = np.empty((steps.seq_len + directions, steps.batch_size, directions * desc.output_size), x.dtype)
        call = object()
        try:
            memory = self._memory.borrow(call)
            for first, last in self._spans(steps):
                part = steps if last - first == steps.seq_len else _part(steps, first, last)
                out, source = hidden[first : last + directions], input_grid(x[first:last])
                hx, cx = self._run(source, hx, cx, part, out, memory)
        finally:
            self._memory.borrowers.discard(call)
        clear_padding(hidden, steps, 1)
        return hidden[1 : steps.seq_len + 1], hx, cx

    def _spans(self, steps: Steps):
        """[first, last) of the steps that all layers run before any runs the next."""
        span = max(steps.seq_len, 1)
        if self._desc.num_layers > 1 and self._desc.num_directions == 1:
            lowest = layers_of(self._desc)[:1]  # whose outputs take the room of a chunk's gates
            span = min(span, lowest[0].slots * chunk_of(lowest, steps.batch_size))
        for first in range(0, max(steps.seq_len, 1), span):
            yield first, min(first + span, steps.seq_len)

    def _run(
        self, below: Grid, hx: Any, cx: Any, steps: Steps, out: np.ndarray, memory: Memory
    ) -> tuple[np.ndarray, Any]:
        """Run all layers over the steps, from what is `below` the first into `out`; returns hy and cy."""
        desc, states = self._desc, outer(self._desc, hx, cx, steps.batch_size)
        for group in self._groups:
            sharing, count, batch = sharing_of(group, steps, out.itemsize), len(group), steps.batch_size
            rooms, held = count if sharing.apart else 1, min(chunk_of(group, batch), max(steps.seq_len, 1))
            gates = memory.take("gates", (rooms, held, batch, self._columns), out.dtype)
            shape = (count, 2, batch, desc.hidden_size) if desc.has_cell else (count, 0)
            cells, runs = memory.take("cells", shape, out.dtype), []
            for number, layer in enumerate(group):
                if layer.direction == 0:
                    hidden = out if layer.layer == desc.num_layers - 1 else np.empty(out.shape, out.dtype)
                    source, below = below, outputs_of(hidden)
                runs.append(Run(layer, source, hidden, gates[number % rooms], cells[number], passing=True))
            run_group(runs, self.weights, steps, sharing, states)
        return states.hy, states.cy


@lru_cache(DESCRIPTORS)
def _places_of_layers(desc: RNNDescriptor) -> np.ndarray:
    return np.stack([layer.places for layer in layers_of(desc)])


def _part(steps: Steps, first: int, last: int) -> Steps:
    count = last - first
    return steps_of(count, steps.batch_size, np.clip(steps.lengths - first, 0, count) if steps.padded else None)
