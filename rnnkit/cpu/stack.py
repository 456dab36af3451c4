"""Calls of `kernels.stack`: all layers of one direction, a step at a time, in one call of a kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.memory import Memory
from rnnkit.call.steps import Steps, row_numbers
from rnnkit.cpu.layer import dense, layers_of, pack
from rnnkit.cpu.planner import grain_of, rows_for_grain, threads_of_step
from rnnkit.cpu.reduced import pack_reduced
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.kernels.machine import team
from rnnkit.kernels.machine.formats import ROWS_AT_ONCE, packed_as, scratch_words
from rnnkit.kernels.stack import run_stack

KEPT_BYTES = 1 << 18
"""Bytes that a plan keeps of what calls of one size have worked in, for the next one."""

_KEPT_ROOMS = 8  # of as many numbers of rows

_ALL_STEPS = np.empty(0, np.int64)  # instead of lengths
_ROWS_OF_A_READ = 2  # a step of fewer rows takes as long as reading the weights does


def new_array(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that is nobody else's, in place of one that is taken from a memory."""
    return np.empty(shape, dtype)


class Room(NamedTuple):
    """What a step of so many rows works in, and the call of the kernel, which lacks its arrays."""

    numbers: np.ndarray  # of the rows
    gates: np.ndarray  # of one layer
    nbytes: int  # of them, and of scratch
    call: Callable[[tuple[np.ndarray, ...]], None]


class _Kept(threading.local):
    """The rooms of a Python thread's last steps, by their rows: a kernel ends before the thread calls another."""

    def __init__(self) -> None:
        self.rooms: dict[int, Room] = {}


class StackSteps:
    """The weights of a network, packed, and its steps one at a time; safe to use from any number of threads.

    Attributes
    ----------
    weights : ndarray
        The packed weights.
    """

    def __init__(self, desc: RNNDescriptor, w: np.ndarray, weights: str | None = None) -> None:
        self._desc, self._layers, self._form = desc, layers_of(desc, weights), weights
        self._memory, first = Memory(), self._layers[0]
        self.weights = pack(desc, w, self._memory.arena) if weights is None else pack_reduced(desc, w, weights)
        dtype = self.weights.dtype
        self._sizes = desc.num_layers, desc.output_size, desc.states_size if desc.has_cell else 0
        self._deepest = max(product.depth for layer in self._layers for product in layer.products)
        self._rows_for_grain, self._grain = rows_for_grain(first, dtype.itemsize), grain_of(dtype.itemsize)
        self._no_y, self._no_cells = np.empty((0, 0), dtype), np.empty((0, 0, 0), dtype)
        offsets, zeros = np.stack([layer.offsets for layer in self._layers]), np.zeros(desc.hidden_size, dtype)
        self._fixed, self._zeros, self._kept = (first.cell, first.sizes, offsets), zeros, _Kept()

    def buffers(self, rows: int, take: Callable[..., np.ndarray] = new_array) -> tuple[np.ndarray, np.ndarray, Room]:
        """What a step of so many rows writes, taken as from a memory: the states after it, and where it works."""
        dtype, (layers, outputs, cells) = self.weights.dtype, self._sizes
        hy = take("hy", (layers, rows, outputs), dtype)
        return hy, take("cy", (layers, rows, cells), dtype) if cells else self._no_cells, self._room(rows, take)

    def _room(self, rows: int, take: Callable[..., np.ndarray] = new_array) -> Room:
        dtype, layer, states = self.weights.dtype, self._layers[0], self._no_cells
        gates, numbers = take("gates", (rows * layer.columns,), dtype), row_numbers(rows)
        threads, packed, nbytes = threads_of_step(rows, self._layers, dtype.itemsize), self.weights, gates.nbytes
        if self._form is not None:  # more threads than there is scratch for do not come in, however many there will be
            threads = min(threads, team.most_threads())
            packed = self.with_scratch(rows, threads, take)
            nbytes += packed.scratch.nbytes
        grain = self._grain if rows >= self._rows_for_grain else 0
        work = self.weights.size * max(rows, _ROWS_OF_A_READ)
        like = self._no_y, states, states, self._no_y, states, states, gates, numbers, _ALL_STEPS
        arguments = like, *self._fixed, packed, self._zeros, grain, threads
        return Room(numbers, gates, nbytes, team.bound(run_stack, work, *arguments, site=layer.site))

    def with_scratch(self, rows: int, threads: int, take: Callable[..., np.ndarray]) -> Any:
        """The packed weights as the kernels take them, with scratch for as many rows as each thread takes at a time."""
        if self._form is None:
            return self.weights
        rows = min(rows, ROWS_AT_ONCE)
        room = rows * scratch_words(self._form, self._deepest)
        scratch = take("scratch", (threads * room,), self.weights.dtype)
        return packed_as(self._form, self.weights, scratch, room, row_numbers(rows))

    def _kept_room(self, rows: int) -> Room:
        """Room of this Python thread's, the same as for its last step of so many rows where that is kept."""
        rooms = self._kept.rooms
        room = rooms.get(rows)
        if room is None:
            room = self._room(rows)
            if room.nbytes <= KEPT_BYTES // _KEPT_ROOMS:
                if len(rooms) == _KEPT_ROOMS:
                    rooms.clear()
                rooms[rows] = room
        return room

    def step(self, x: np.ndarray, hx: Any, cx: Any = None, buffers: Any = None) -> tuple[Any, Any, Any]:
        """Run all layers over one time step; returns y, hy and cy, in the buffers where there are any."""
        if buffers is None:
            rows, (layers, outputs, cells) = len(x), self._sizes
            hy = np.empty((layers, rows, outputs), x.dtype)
            cy = np.empty((layers, rows, cells), x.dtype) if cells else self._no_cells
            room = self._kept_room(rows)
        else:
            hy, cy, room = buffers
        self._run(x, hx, cx, self._no_y, hy, cy, room, _ALL_STEPS)
        return hy[-1], hy, cy if self._sizes[2] else None

    def steps(self, x: np.ndarray, hx: Any, cx: Any, steps: Steps) -> tuple[Any, Any, Any]:
        """Run all layers over several time steps."""
        (seq_len, batch, size), (layers, outputs, cells) = x.shape, self._sizes
        y, places = np.empty((seq_len * batch, outputs), x.dtype), min(seq_len, 2)
        hy = np.empty((places * layers, batch, outputs), x.dtype)
        cy = np.empty((places * layers, batch, cells), x.dtype) if cells else self._no_cells
        lengths = dense(steps.lengths) if steps.padded else _ALL_STEPS
        self._run(x.reshape(seq_len * batch, size), hx, cx, y, hy, cy, self._kept_room(batch), lengths)
        first = (seq_len - 1) % 2 * layers
        last = slice(first, first + layers)
        return y.reshape(seq_len, batch, outputs), hy[last], cy[last] if cells else None

    def _run(
        self, x: np.ndarray, hx: Any, cx: Any, y: np.ndarray, hy: np.ndarray, cy: np.ndarray, room: Room,
        lengths: np.ndarray,
    ) -> None:
        """Run all layers over the steps of x (T*N, I) and write y, hy and cy, as `run_stack` says."""
        (layers, outputs, cells), rows = self._sizes, len(room.numbers)
        if hx is None:
            hx = np.zeros((layers, rows, outputs), x.dtype)
        if not cells:
            cx = self._no_cells
        elif cx is None:
            cx = np.zeros((layers, rows, cells), x.dtype)
        x = x if x.flags.carray else dense(x)
        hx = hx if hx.flags.carray else dense(hx)
        cx = cx if cx.flags.carray else dense(cx)
        room.call((x, hx, cx, y, hy, cy, room.gates, room.numbers, lengths))
