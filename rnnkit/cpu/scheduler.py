"""The scheduler: it decides once, only from sizes and the number of threads, how a call is split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from rnnkit.call.steps import gradient_chunk, row_numbers
from rnnkit.cpu.layer import Layer, is_stack
from rnnkit.cpu.route import CACHED_BYTES, chunk_of, steps_of_call
from rnnkit.cpu.rows import StepRows
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.registers import VECTOR_BYTES
from rnnkit_kernels.operands import Schedule

_MIN_ROWS = 3  # of a thread: below this a step is bound by reading the weights
# (bytes of the recurrent weights, rows): two threads split the rows if the weights have at most these bytes and the
# batch has at least these rows. The hidden states then stay in the cache of the core that wrote them. If two threads
# split the units instead, the states change core in each step: 55 ns a cache line if the cores of a virtual machine are
# near each other, 165 ns and more if they are far, which changes within minutes. GF/s, inference / training (Zen 5, T =
# 50):
#                       near, by rows   near, by units   far, by rows   far, by units
#   LSTM, H=128, N=3    297 / 312       339 / 349        236 / 208      182 / 193
#   LSTM, H=192, N=5    407 / 419       430 / 426        330 / 283      268 / 264
#   GRU,  H=128, N=5    347 / 359       344 / 352        271 / 244      187 / 206
_MIN_BATCH = (CACHED_BYTES * 5 // 8, 3), (CACHED_BYTES, 6)
# With larger weights, which each thread then reads in every step, splitting rows pays only if each thread has exactly
# the rows of the largest tile. LSTM, H = 450, N = 12, as above: 457 / 413, 442 / 402, 448 / 392, 419 / 379.
_MAX_BYTES_BY_ROWS, _TILE_ROWS = 3_300_000, 6
# In float64; the rows must also split almost evenly: the larger part has at most 9/16 of them.
_MIN_BATCH_FLOAT64 = (1 << 18, 4), (CACHED_BYTES, 6)
# Two threads with one row each read weights from the L1 cache as fast as they multiply. Split by units, they take 0.6
# to 0.75 of the time by rows with H = 128 (64 KiB and more), 1 to 1.5 with H = 64 and tanh or GRU (inference and
# training, T = 200, Zen 5).
_L1_BYTES = 48 << 10
# Units of a block in work stealing. On an idle machine, blocks of 64 cost 1-2 %, blocks of 32 2-4 %. If another program
# takes a third of one of two cores, they save 3-20 %, blocks of 128 half as much (Zen 3, LSTM, H = 256 to 800).
_UNIT_GRAIN = 64
_GRAIN_WORK = 1 << 19  # least multiply-adds of a block in a step, about 5 us on one thread; taking one costs 0.1 us
# (lags, rows, share): two layers are pipelined, each on half of the threads, if the sequence has at least `lags` lags
# (a lag is the fewest steps that have `rows` rows together), and neither layer has more than `share` of the work. The
# upper layer starts one lag after the lower one, and the threads of the smaller layer wait for the larger one. Each
# thread then multiplies its weights with all rows. Time on two threads, relative to one layer after the other: with
# T = 50 0.65 to 0.87 for N = 4 to 9, 0.84 to 1.02 for N = 16 to 64, with T = 12 up to 1.04 (LSTM and GRU, H = 64 and
# 128, Zen 5 with cores far from each other); for N = 1 to 5 0.7 to 1.0 (Zen 3).
_PIPELINED = 6, 8, 0.66
# Cost in multiply-adds of a thread. _BARRIER: a barrier, for each thread, 60 ns to pass a cache line between two of the
# eight cores that share an L3 cache; four times as much between other cores (EPYC, Zen 4). _LINE: a cache line of
# hidden states that another core wrote, with about ten transfers in flight.
_BARRIER, _LINE, _LINE_BYTES = 8_000, 600, 64
_NEAR_CORES, _FAR = 8, 4
_TOLERANCE = 1.05  # prefer fewer threads if they take at most this multiple of the best time
# Like `_MIN_ROWS`, if a thread's weights do not fit into its L2 cache: with 10 rows, 23 GB/s from L3 for each core
# suffice to keep it computing.
_MIN_ROWS_FAR = 10


class Scheduler:
    """Makes all decisions of one call of the engine, with the same number of threads."""

    def __init__(self, steps: StepRows, itemsize: int, threads: int | None = None, in_place: bool = False) -> None:
        self.steps, self.itemsize, self.threads = steps, itemsize, threads or thread_pool.wanted_size()
        self._rows = max(steps.batch_size, 1)
        self.in_place = in_place  # whether the weights are read in place

    def forward(self, group: Sequence[Layer], keeps_gates: bool) -> Schedule:
        """Return the schedule of a group of pseudo-layers in forward; training keeps the gates of all steps."""
        return self._shared(group, chunk_of(group, self._rows), keeps_gates, group[0].input_work)

    def backward(self, group: Sequence[Layer]) -> Schedule:
        """Return the schedule of a group in backward; a chunk is the depth of one product of the weight gradient."""
        chunk, layer = gradient_chunk(self._rows, self.itemsize), group[0]
        return self._shared(group, chunk, False, 2 * layer.input_work + layer.step_work)

    def chunk_rows(self, schedule: Schedule) -> int:
        """Return the number of rows of a buffer for a chunk of steps."""
        return min(schedule.chunk, self.steps.capacity) * self.steps.batch_size

    def calls(self, group: Sequence[Layer], schedule: Schedule) -> Sequence[tuple[int, int]]:
        """Return [start, stop) of the steps of each kernel call, in processing order.

        Signal handlers run between calls, so that Ctrl-C need not wait for the last step.
        """
        total, count = self.steps.capacity, steps_of_call(group, self._rows, schedule.chunk)
        if total <= count:
            return ((0, total),)
        return [(start, min(start + count, total)) for start in range(0, total, count)]

    def _shared(self, group: Sequence[Layer], chunk: int, keeps_gates: bool, spread: int) -> Schedule:
        """Split a group between threads; `spread` is the number of multiply-adds of a row outside the time loop."""
        steps, layer, count = self.steps, group[0], len(group)
        threads = self.threads if layer.shares_units else 1

        def sharing(threads: int) -> Sharing:
            sizes = self._rows, layer.recurrent_weights * self.itemsize, layer.sizes.hidden * self.itemsize
            return best_sharing(*sizes, layer.step_work, layer.barriers, spread, threads, itemsize=self.itemsize)

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
            threads -= threads % count if threads > 3 else 0  # of 3, using all beats splitting directions
            parts = count if threads % count == 0 else 1
            return schedule(sharing(threads // parts), parts, split=True)
        lags, rows, share = _PIPELINED
        lag = -(-rows // self._rows)
        even = max(each.work for each in group) <= share * sum(each.work for each in group)
        cached = layer.recurrent_weights * self.itemsize <= CACHED_BYTES
        if threads % 2 == 0 and even and cached and steps.capacity >= lags * lag:
            return schedule(sharing(threads // 2), 2, split=True, lag=lag)
        return schedule(sharing(threads))


class Sharing(NamedTuple):
    """Teams of threads: each team takes some rows of the batch, and its threads split the units."""

    teams: int
    threads: int  # of all teams


def shares_rows(batch_size: int, weights: float, itemsize: int) -> bool:
    """Return whether two threads split the rows of a batch rather than the units; `weights` is in bytes.

    Splitting rows saves a barrier per step, and the hidden states stay in the cache of the core that wrote them. But
    each thread then reads all recurrent weights in every step: there must be enough rows to be compute-bound.
    """
    rows, is_wide = -(-batch_size // 2), itemsize > 4
    if rows == 1:
        return batch_size == 2 and weights <= _L1_BYTES
    if weights > CACHED_BYTES:
        return not is_wide and rows == _TILE_ROWS and weights <= _MAX_BYTES_BY_ROWS
    fewest = next(count for most, count in (_MIN_BATCH_FLOAT64 if is_wide else _MIN_BATCH) if weights <= most)
    return batch_size >= fewest and not (is_wide and rows * 16 > batch_size * 9)


@lru_cache(1024)
def best_sharing(
    batch_size: int,
    weights: float,
    units: int,
    work: int,
    barriers: int,
    spread: int,
    threads: int,
    max_teams: int | None = None,
    itemsize: int = 4,
) -> Sharing:
    """Choose the fastest split of a layer on at most `threads` threads; with too many a step is bound by its barriers.

    Above two threads this uses a cost model (`docs/explanation/performance.md`) that was calibrated on two threads.

    Parameters
    ----------
    batch_size : int
    weights, units : int
        Bytes of the recurrent weights, and of a row of hidden states.
    work, spread : int
        Multiply-adds of a row in a step, which ends with a barrier, and outside the steps.
    barriers : int
        Barriers of a step.
    threads : int
        At least 1. Two threads are always both used.
    max_teams : int, optional
        By default the number of rows.
    itemsize : int, optional
        Bytes of a number.
    """
    if threads <= 2:
        by_rows = threads == 2 and max_teams is None and shares_rows(batch_size, weights, itemsize)
        return Sharing(2 if by_rows else 1, threads)
    panels, lines = -(-units // VECTOR_BYTES), -(-units // _LINE_BYTES)

    def cost(sharing: Sharing) -> float:
        size, rows = sharing.threads // sharing.teams, -(-batch_size // sharing.teams)
        share = -(-panels // size) / panels
        least = _MIN_ROWS if weights * share <= CACHED_BYTES else _MIN_ROWS_FAR
        step = max(rows, least) * work * share
        if size > 1:
            others = max(size - _NEAR_CORES, 0)
            step += barriers * (size + (_FAR - 1) * others) * _BARRIER
            step += rows * lines * (1 - share) * _LINE * (_FAR if others else 1)
        return step + batch_size * spread / sharing.threads

    max_teams = min(max_teams or batch_size, threads)
    choices = {
        sharing: cost(sharing)
        for teams in range(1, max_teams + 1)
        for size in range(1, min(threads // teams, panels) + 1)
        if (sharing := Sharing(teams, teams * size)).threads > 1
    }
    shortest = min(choices.values(), default=0)
    near = [(one.threads, taken, one) for one, taken in choices.items() if taken <= _TOLERANCE * shortest]
    return min(near)[-1] if near else Sharing(1, 2)


def threads_of_step(batch_size: int, layers: Sequence[Layer], itemsize: int) -> int:
    """Return the largest useful number of threads to split the units of each layer, in one step of these rows."""
    if not layers[0].shares_units:
        return 1
    units, barriers = layers[0].sizes.hidden, layers[0].barriers
    work = sum(layer.input_work + layer.step_work for layer in layers) // len(layers)
    sizes = batch_size, layers[0].recurrent_weights * itemsize, units * itemsize, work, barriers, 0
    return best_sharing(*sizes, max(units, 2), max_teams=1).threads


def rows_for_grain(layer: Layer, itemsize: int) -> float:
    """Return the batch size from which work stealing pays between threads that split the units.

    Below it the split is static: a thread's weights stay in its cache, or a step is too short to divide.
    """
    weights = layer.recurrent_weights
    if weights * itemsize <= CACHED_BYTES:
        return math.inf
    return _GRAIN_WORK * layer.sizes.hidden / (_UNIT_GRAIN * weights)


def panel_grain_of(itemsize: int) -> int:
    """Return the number of panels of a block in work stealing."""
    return _UNIT_GRAIN * itemsize // VECTOR_BYTES
