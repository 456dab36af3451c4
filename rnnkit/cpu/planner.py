"""The planner: how a call is worked on, decided once, from the sizes and the number of threads alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from rnnkit.call.steps import LISTED_ROWS, Steps, gradient_chunk, row_numbers
from rnnkit.cpu.layer import Layer, is_stack
from rnnkit.cpu.rows import StepRows
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.kernels.machine import team
from rnnkit.kernels.machine.in_place import MAX_ROWS_IN_PLACE
from rnnkit.kernels.machine.registers import VECTOR_BYTES
from rnnkit.kernels.operands import Schedule

_CACHED_BYTES = 1 << 20  # recurrent weights of this size stay in a core's L2 cache
_CHUNK_BYTES = 1 << 20  # gates of a chunk of steps (float32): from product to use they stay in the threads' L2
_ROWS = 3  # with fewer for each thread a step takes as long as reading the weights does
# Two threads share out the rows where the recurrent weights take at most so many bytes and there are at least so many
# rows: the hidden states then stay in the cache of the core that wrote them. In each step of two that share out the
# units they change owner, in 55 ns a cache line where a virtual machine's cores are near each other, in 165 ns and more
# where they are far, and this changes within minutes. By rows and by units, GF/s in inference, training (Zen 5, T =
# 50): LSTM, H = 128, N = 3, near 297, 312 and 339, 349, far 236, 208 and 182, 193; H = 192, N = 5, near 407, 419 and
# 430, 426, far 330, 283 and 268, 264; GRU, H = 128, N = 5, near 347, 359 and 344, 352, far 271, 244 and 187, 206.
_FEWEST_ROWS = (_CACHED_BYTES * 5 // 8, 3), (_CACHED_BYTES, 6)
# Larger weights, which each thread then reads in every step, pay where both have as many rows as the largest tile:
# LSTM, H = 450, N = 12, near 457, 413 and 442, 402, far 448, 392 and 419, 379.
_MOST_BYTES, _TILE_ROWS = 3_300_000, 6
# In float64, where the rows have to come out even.
_FEWEST_WIDE_ROWS = (1 << 18, 4), (_CACHED_BYTES, 6)
# Two threads with one row each read weights that a core's first cache holds as fast as they multiply. By units in place
# of by rows: 0.6 to 0.75 of the time with H = 128 (64 KiB and more), 1 to 1.5 with H = 64 and tanh or GRU (inference
# and training, T = 200, Zen 5).
_FIRST_BYTES = 48 << 10
# Units that a thread takes at a time. Where nothing else runs, blocks cost 1-2 % with 64, 2-4 % with 32; where another
# program takes a third of one of two cores, they save 3-20 %, with 128 half as much (Zen 3, LSTM, H = 256 to 800).
_UNIT_GRAIN = 64
_GRAIN_WORK = 1 << 19  # multiply-adds in a step that make up a block, about 5 us on one thread; to take it costs 0.1 us
# Two layers are pipelined, each by half of the threads, where there are at least so many lags of so many rows, since
# the upper one waits for the lower one's first, and where neither has a larger part of the work, since the other's
# threads wait for it. Each thread then multiplies its weights with all rows. Time on two threads, of that of one layer
# after the other: with T = 50 and N = 4 to 9 0.65 to 0.87, with N = 16 to 64 0.84 to 1.02, with T = 12 up to 1.04 (LSTM
# and GRU, H = 64 and 128, Zen 5 with cores far from each other); with N = 1 to 5 0.7 to 1.0 (Zen 3).
_PIPELINED = 6, 8, 0.66
# Reads of the weights where they are, that take as long as packing them. With 8 an inference takes 0.8 to 1.2 of the
# time where the weights are in the cache, from elsewhere 0.8 to 0.98. Backward reads rows for MAX_ROWS_IN_PLACE at a
# time, and transposes nothing: with 10 reads it takes 0.8 to 0.95, with 40 0.91 to 1.04, with 57 0.94 to 1.08 (GRU and
# tanh, H = 32 to 512, Zen 4).
_READS, _READS_BACK = 9, 48
_INPUT_ROWS = 64
_CALL_WORK = 1 << 32  # multiply-adds of a call, about 0.1 s on one thread: an interrupt waits no longer
# What a barrier takes for each thread that meets there, in multiply-adds of one of them: 60 ns, in which a core hands a
# cache line on to one that shares its L3 cache, as eight do; beyond these it takes four times as long (EPYC, Zen 4).
# And what a line of the hidden states takes that another core has written, some ten being on their way at once.
_MEETING, _LINE, _LINE_BYTES = 8_000, 600, 64
_NEAR_CORES, _FAR = 8, 4
_SOON = 1.05  # of the shortest time is short enough for fewer threads
# As `_ROWS`, where the weights that a thread reads do not fit into its L2 cache: 23 GB/s of each core's L3 are enough.
_FAR_ROWS = 10


class Planner:
    """Decides for one call of the engine, so that all of it agrees on the number of threads."""

    def __init__(
        self, steps: StepRows, itemsize: int, threads: int | None = None, in_place: bool = False
    ) -> None:
        self.steps, self.itemsize, self.threads = steps, itemsize, threads or team.wanted_size()
        self._rows = max(steps.batch_size, 1)
        self.in_place = in_place  # whether the weights are read where they are

    def forward(self, group: Sequence[Layer], keeps_gates: bool) -> Schedule:
        """How a group of pseudo-layers runs forward; in training it keeps the gates of all steps."""
        return self._shared(group, chunk_of(group, self._rows), keeps_gates, group[0].input_work)

    def backward(self, group: Sequence[Layer]) -> Schedule:
        """How it runs backward: a chunk is as many rows as a product of their gradients works through at once."""
        chunk, layer = gradient_chunk(self._rows, self.itemsize), group[0]
        return self._shared(group, chunk, False, 2 * layer.input_work + layer.step_work)

    def chunk_rows(self, schedule: Schedule) -> int:
        """Rows of a buffer for a chunk of steps."""
        return min(schedule.chunk, self.steps.seq_len) * self.steps.batch_size

    def calls(self, group: Sequence[Layer], schedule: Schedule) -> Sequence[tuple[int, int]]:
        """[start, stop) of the steps, in the order in which they are worked on, of each call of a kernel.

        Between two calls Python runs what is to be run on a signal: an interrupt need not wait for the last step.
        """
        total, count = self.steps.seq_len, steps_of_call(group, self._rows, schedule.chunk)
        if total <= count:
            return ((0, total),)
        return [(start, min(start + count, total)) for start in range(0, total, count)]

    def _shared(self, group: Sequence[Layer], chunk: int, keeps_gates: bool, spread: int) -> Schedule:
        """How the threads share out a group; `spread` are the multiply-adds of a row outside of its steps."""
        steps, layer, count = self.steps, group[0], len(group)
        threads = self.threads if layer.shares_units else 1

        def sharing(threads: int) -> Sharing:
            sizes = self._rows, layer.recurrent_weights * self.itemsize, layer.sizes.hidden * self.itemsize
            return best_sharing(*sizes, layer.step_work, layer.meetings, spread, threads, itemsize=self.itemsize)

        def schedule(
            best: Sharing, parts: int = 1, panel_grain: int = 0, split: bool = False, lag: int = 1
        ) -> Schedule:
            bounds = steps.bounds(best.teams) if best.teams > 1 else row_numbers(0)
            return Schedule(
                bounds=bounds, panel_grain=panel_grain, num_passes=count, split=split, pipelined=is_stack(group),
                lag=lag, chunk=chunk, keeps_gates=keeps_gates, threads=best.threads * parts,
            )  # fmt: skip

        if threads > 1 and steps.batch_size >= rows_for_grain(layer, self.itemsize):
            best = sharing(threads)
            if best.teams == 1:
                return schedule(best, panel_grain=panel_grain_of(self.itemsize))
        if not is_stack(group):
            threads -= threads % count if threads > 3 else 0  # of 3 the third is worth more than sharing out directions
            parts = count if threads % count == 0 else 1
            return schedule(sharing(threads // parts), parts, split=True)
        lags, rows, share = _PIPELINED
        lag = -(-rows // self._rows)
        even = max(one.work for one in group) <= share * sum(one.work for one in group)
        cached = layer.recurrent_weights * self.itemsize <= _CACHED_BYTES
        if threads % 2 == 0 and even and cached and steps.seq_len >= lags * lag:
            return schedule(sharing(threads // 2), 2, split=True, lag=lag)
        return schedule(sharing(threads))


def reads_in_place(desc: RNNDescriptor, steps: Steps, backward: bool = False) -> bool:
    """Whether forward, or backward, reads the weights in place: forward for each chunk of the input and for each step.

    Those of a projection are always packed: to compile the other way for them, too, would take every cell 0.5 s more.
    """
    if desc.projected:
        return False
    rows, count = steps.batch_size, steps.seq_len
    if backward:
        return -(-count * rows // MAX_ROWS_IN_PLACE) + count * -(-rows // MAX_ROWS_IN_PLACE) < _READS_BACK
    fits = rows * desc.hidden_size * desc.np_dtype.itemsize <= _CACHED_BYTES  # what each few panels are multiplied with
    return fits and -(-count // steps_at_once(rows)) + count < _READS


def steps_at_once(batch_size: int) -> int:
    """Steps whose input a brief call multiplies together."""
    return -(-_INPUT_ROWS // max(batch_size, 1))


def slabs_of(layers: Sequence[Layer], steps: Steps) -> Iterator[tuple[int, int]]:
    """[start, stop) of the steps that all layers run in inference before any runs the next.

    Of stacked layers of one direction these are a few, so that of the lower ones' outputs no more is in memory: as many
    as take the space of a chunk's gates.
    """
    total = max(steps.seq_len, 1)
    slab = total
    if len(layers) > 1 and layers[0].direction == layers[1].direction:
        slab = min(total, layers[0].columns // layers[0].sizes.hidden * chunk_of(layers[:1], max(steps.batch_size, 1)))
    for start in range(0, total, slab):
        yield start, min(start + slab, steps.seq_len)


def chunk_of(group: Sequence[Layer], batch_size: int) -> int:
    """Steps whose gates are worked on at a time, forward, by all the pseudo-layers that are at work."""
    columns = group[0].columns * (1 if is_stack(group) else len(group))
    return max(1, _CHUNK_BYTES // (columns * batch_size * 4))


class Sharing(NamedTuple):
    """Teams of threads: each has rows of the batch, and its threads share out the units."""

    teams: int
    threads: int  # of all teams


def shares_rows(batch_size: int, weights: float, itemsize: int) -> bool:
    """Whether two threads share out the rows of a batch, and not the units, with recurrent weights of so many bytes.

    Sharing rows saves a barrier a step, and the hidden states stay with who wrote them; but each thread then reads all
    recurrent weights in every step: the rows must be enough for reading not to take longer than multiplying.
    """
    rows, is_wide = -(-batch_size // 2), itemsize > 4
    if rows == 1:
        return batch_size == 2 and weights <= _FIRST_BYTES
    if weights > _CACHED_BYTES:
        return not is_wide and rows == _TILE_ROWS and weights <= _MOST_BYTES
    fewest = next(count for most, count in (_FEWEST_WIDE_ROWS if is_wide else _FEWEST_ROWS) if weights <= most)
    return batch_size >= fewest and not (is_wide and rows * 16 > batch_size * 9)


@lru_cache(1024)
def best_sharing(
    batch_size: int, weights: float, units: int, work: int, meetings: int, spread: int, threads: int,
    most_teams: int | None = None, itemsize: int = 4,
) -> Sharing:
    """What runs a layer soon on so many threads or fewer: with too many a step takes as long as its barriers do.

    For more threads than two this is by a model (`docs/explanation/performance.md`) that was measured on two alone.

    Parameters
    ----------
    batch_size : int
    weights, units : int
        Bytes of the recurrent weights, and of a row of hidden states.
    work, spread : int
        Multiply-adds of a row in a step, which ends with a barrier, and outside of it.
    meetings : int
        Barriers of a step.
    threads : int
        At least 1. Both of two always pay.
    most_teams : int, optional
        By default as many as there are rows.
    itemsize : int, optional
        Bytes of a number.
    """
    if threads <= 2:
        by_rows = threads == 2 and most_teams is None and shares_rows(batch_size, weights, itemsize)
        return Sharing(2 if by_rows else 1, threads)
    panels, lines = -(-units // VECTOR_BYTES), -(-units // _LINE_BYTES)

    def cost(sharing: Sharing) -> float:
        size, rows = sharing.threads // sharing.teams, -(-batch_size // sharing.teams)
        share = -(-panels // size) / panels
        least = _ROWS if weights * share <= _CACHED_BYTES else _FAR_ROWS
        step = max(rows, least) * work * share
        if size > 1:
            others = max(size - _NEAR_CORES, 0)
            step += meetings * (size + (_FAR - 1) * others) * _MEETING
            step += rows * lines * (1 - share) * _LINE * (_FAR if others else 1)
        return step + batch_size * spread / sharing.threads

    most_teams = min(most_teams or batch_size, threads)
    choices = {
        sharing: cost(sharing)
        for teams in range(1, most_teams + 1)
        for size in range(1, min(threads // teams, panels) + 1)
        if (sharing := Sharing(teams, teams * size)).threads > 1
    }
    shortest = min(choices.values(), default=0)
    soon = [(one.threads, taken, one) for one, taken in choices.items() if taken <= _SOON * shortest]
    return min(soon)[-1] if soon else Sharing(1, 2)


def threads_of_step(batch_size: int, layers: Sequence[Layer], itemsize: int) -> int:
    """How many threads at most it pays to share out the units of all layers to, in one step of so many rows."""
    if not layers[0].shares_units:
        return 1
    units, meetings = layers[0].sizes.hidden, layers[0].meetings
    work = sum(layer.input_work + layer.step_work for layer in layers) // len(layers)
    sizes = batch_size, layers[0].recurrent_weights * itemsize, units * itemsize, work, meetings, 0
    return best_sharing(*sizes, max(units, 2), most_teams=1).threads


def steps_of_call(group: Sequence[Layer], batch_size: int, chunk: int) -> int:
    """Steps that a call of a kernel runs: whole chunks, or less where even one has more rows than are listed."""
    listed = max(LISTED_ROWS // batch_size, 1)
    brief = _CALL_WORK // (sum(layer.work for layer in group) * batch_size)
    return min(max(brief // chunk, 1) * chunk, listed // chunk * chunk or listed)


def rows_for_grain(layer: Layer, itemsize: int) -> float:
    """Size of the batch from which on threads that share the units take some at a time, a neighbour's too.

    Below it each does its own share: where its weights stay in its cache, or where a step is done sooner than divided.
    """
    weights = layer.recurrent_weights
    if weights * itemsize <= _CACHED_BYTES:
        return math.inf
    return _GRAIN_WORK * layer.sizes.hidden / (_UNIT_GRAIN * weights)


def panel_grain_of(itemsize: int) -> int:
    """Panels that a thread takes at a time."""
    return _UNIT_GRAIN * itemsize // VECTOR_BYTES
