"""The planner: how a call is worked on, decided once, from the sizes and the number of threads alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from rnnkit.cpu.layer import Layer, is_stack
from rnnkit.kernels.loop import Schedule
from rnnkit.kernels.machine import team
from rnnkit.kernels.machine.registers import VECTOR_BYTES
from rnnkit.steps import LISTED_ROWS, Steps, gradient_chunk, row_numbers

_CACHED_BYTES = 1 << 20  # recurrent weights of this size stay in a core's L2 cache
_CHUNK_BYTES = 1 << 20  # gates of a chunk of steps (float32): from product to use they stay in the threads' L2
# With fewer rows than that for each thread a step takes as long as reading the weights does. Two threads, LSTM, H = 256
# (1 MiB): 1.3 times as fast by units with 1 row each, 1.1 times with 2; H = 128: 1.1 times as fast by rows with 1.
_ROWS, _LIGHT_BYTES = 3, 1 << 18
# Units that a thread takes at a time. Where nothing else runs, blocks cost 1-2 % with 64, 2-4 % with 32; where another
# program takes a third of one of two cores, they save 3-20 %, with 128 half as much (Zen 3, LSTM, H = 256 to 800).
_GRAIN = 64
_GRAIN_WORK = 1 << 19  # multiply-adds in a step that make up a block, about 5 us on one thread; to take it costs 0.1 us
# Two layers are pipelined, each by half of the threads, where there are at least so many lags of so many rows, since
# the upper one waits for the lower one's first, and where neither has a larger part of the work, since the other's
# threads wait for it. Time on two threads, of that of one layer after the other: where these share out units, N = 1 to
# 5, 0.7 to 1.0, with fewer up to 1.1; where they share out rows, 0.85 to 0.98 with T = 200 to 1000, but up to 1.07 with
# T = 50 and up to 1.16 where one layer has 0.64 of the work (LSTM and GRU, H = 64 to 256, Zen 3).
_PIPELINED_BY_UNITS, _PIPELINED_BY_ROWS = (6, 8, 0.66), (48, 16, 0.55)
_CALL_WORK = 1 << 32  # multiply-adds of a call, about 0.1 s on one thread: an interrupt waits no longer


class Planner:
    """Decides for one call of the engine, so that all of it agrees on the number of threads."""

    def __init__(self, steps: Steps, itemsize: int, threads: int | None = None) -> None:
        self.steps, self.itemsize, self.threads = steps, itemsize, threads or team.wanted_size()
        self._batch = max(steps.batch_size, 1)

    def forward(self, group: Sequence[Layer], keeps_gates: bool) -> Schedule:
        """How a group of pseudo-layers runs forward; in training it keeps the gates of all steps."""
        chunk = self.chunk_of(group)
        buffered = self.steps.seq_len if keeps_gates else min(chunk, max(self.steps.seq_len, 1))
        return self._shared(group, chunk, buffered)

    def backward(self, group: Sequence[Layer]) -> Schedule:
        """How it runs backward: a chunk is as many rows as a product of their gradients works through at once."""
        chunk = gradient_chunk(self._batch, self.itemsize)
        return self._shared(group, chunk, min(chunk, self.steps.seq_len))

    def calls(self, group: Sequence[Layer], schedule: Schedule) -> Sequence[tuple[int, int]]:
        """[start, stop) of the steps, in the order in which they are worked on, of each call of a kernel.

        Between two calls Python runs what is to be run on a signal: an interrupt need not wait for the last step.
        """
        total, count = self.steps.seq_len, steps_of_call(group, self._batch, schedule.chunk)
        if total <= count:
            return ((0, total),)
        return [(start, min(start + count, total)) for start in range(0, total, count)]

    def slabs(self, layers: Sequence[Layer]) -> Iterator[tuple[int, int]]:
        """[start, stop) of the steps that all layers run in inference before any runs the next.

        Of stacked layers of one direction these are a few, so that of the lower ones' outputs no more is in memory: as
        many as take the space of a chunk's gates.
        """
        total = max(self.steps.seq_len, 1)
        slab = total
        if len(layers) > 1 and layers[0].direction == layers[1].direction:
            slab = min(total, layers[0].slots * self.chunk_of(layers[:1]))
        for start in range(0, total, slab):
            yield start, min(start + slab, self.steps.seq_len)

    def chunk_of(self, group: Sequence[Layer]) -> int:
        """Steps whose gates are worked on at a time, forward, by all the pseudo-layers that are at work."""
        columns = group[0].columns * (1 if is_stack(group) else len(group))
        return max(1, _CHUNK_BYTES // (columns * self._batch * 4))

    def _shared(self, group: Sequence[Layer], chunk: int, buffered_steps: int) -> Schedule:
        """How the threads share out a group."""
        steps, layer, count, threads = self.steps, group[0], len(group), self.threads
        own, pipelined = (chunk, buffered_steps, steps.batch_size), is_stack(group)
        if threads > 1 and steps.batch_size >= rows_for_grain(layer, self.itemsize):
            return Schedule(row_numbers(0), grain_of(self.itemsize), count, False, pipelined, 1, *own)
        if not pipelined:
            own_threads = threads // count if threads % count == 0 else threads
            return Schedule(self._bounds(layer, own_threads), 0, count, True, False, 1, *own)
        bounds = self._bounds(layer, threads)
        least, rows, share = _PIPELINED_BY_ROWS if bounds.size else _PIPELINED_BY_UNITS
        lag = -(-rows // self._batch)
        even = max(one.work for one in group) <= share * sum(one.work for one in group)
        cached = layer.recurrent_weights * self.itemsize <= _CACHED_BYTES
        if threads % 2 == 0 and even and cached and steps.seq_len >= least * lag:
            return Schedule(self._bounds(layer, threads // 2), 0, count, True, True, lag, *own)
        return Schedule(bounds, 0, count, False, True, 1, *own)

    def _bounds(self, layer: Layer, threads: int) -> np.ndarray:
        """Where to cut the batch, if the threads share out its rows; empty if they share out the units.

        Sharing rows saves a barrier a step, but each thread then reads all recurrent weights in every step: they must
        fit into its cache, the rows must come out even, and be enough for reading not to take longer than multiplying.
        """
        weights, rows = layer.recurrent_weights * self.itemsize, -(-self._batch // threads) * threads
        most = _CACHED_BYTES if self._batch >= _ROWS * threads else _LIGHT_BYTES
        if weights > most or rows * 8 > self._batch * 9:
            return row_numbers(0)
        return self.steps.bounds(threads)


def steps_of_call(group: Sequence[Layer], batch_size: int, chunk: int) -> int:
    """Steps that a call of a kernel runs: whole chunks, or less where even one has more rows than are listed."""
    listed = max(LISTED_ROWS // batch_size, 1)
    brief = _CALL_WORK // (sum(layer.work for layer in group) * batch_size)
    return min(max(brief // chunk, 1) * chunk, listed // chunk * chunk or listed)


def rows_for_grain(layer: Layer, itemsize: int) -> float:
    """Size of the batch from which on threads that share the units take `grain_of` them at a time, of anybody's share.

    Below it each does its own share: where its weights stay in its cache, or where a step is done sooner than divided.
    """
    weights = layer.recurrent_weights
    return _GRAIN_WORK * layer.sizes.hidden / (_GRAIN * weights) if weights * itemsize > _CACHED_BYTES else math.inf


def grain_of(itemsize: int) -> int:
    """Panels that a thread takes at a time."""
    return _GRAIN * itemsize // VECTOR_BYTES
