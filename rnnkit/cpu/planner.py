"""How the threads share out a layer, or two at once; decided from the sizes alone, before the kernel runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rnnkit.cpu.layer import Layer, stacked
from rnnkit.kernels.machine import team
from rnnkit.kernels.machine.registers import VECTOR_BYTES
from rnnkit.steps import LISTED_ROWS, Steps, row_numbers

_CACHED_BYTES = 1 << 20  # recurrent weights of this size stay in a core's L2 cache
_CHUNK_BYTES = 1 << 20  # gates of a chunk of steps (float32): from product to use they stay in the threads' L2
# With fewer rows than that for each thread a step takes as long as reading the weights does. Two threads, LSTM, H = 256
# (1 MiB): 1.3 times as fast by units with 1 row each, 1.1 times with 2; H = 128: 1.1 times as fast by rows with 1.
_ROWS, _LIGHT_BYTES = 3, 1 << 18
# Units that a thread takes at a time. Where nothing else runs, pieces cost 1-2 % with 64, 2-4 % with 32; where another
# program takes a third of one of two cores, they save 3-20 %, with 128 half as much (Zen 3, LSTM, H = 256 to 800).
_PIECE = 64
_PIECE_WORK = 1 << 19  # multiply-adds in a step that make up a piece, about 5 us on one thread; to take it costs 0.1 us
# Two layers run abreast, each by half of the threads, where there are at least so many spans of so many rows, since the
# upper one waits for the lower one's first, and where neither has a larger part of the work, since the other's threads
# wait for it. Time on two threads, of that of one layer after the other: where these share out units, N = 1 to 5, 0.7
# to 1.0, with fewer spans up to 1.1; where they share out rows, 0.85 to 0.98 with T = 200 to 1000, but up to 1.07 with
# T = 50 and up to 1.16 where one layer has 0.64 of the work (LSTM and GRU, H = 64 to 256, Zen 3).
_ABREAST_BY_UNITS, _ABREAST_BY_ROWS = (6, 8, 0.66), (48, 16, 0.55)
_CALL_WORK = 1 << 32  # multiply-adds of a call, about 0.1 s on one thread: an interrupt waits no longer


class Sharing(NamedTuple):
    """What the kernels of a group of pseudo-layers are told of it."""

    bounds: np.ndarray  # where to cut the batch of every step if by rows, else empty
    piece: int  # panels that a thread takes at a time if by units, 0 for its share
    apart: bool  # whether each of two strands has room of its own, and threads, if their number is even
    span: int  # steps after which the layer that comes first lets the other go on, where two run abreast


def sharing_of(group: tuple[Layer, ...], steps: Steps, itemsize: int) -> Sharing:
    """How the threads share out a group of pseudo-layers."""
    threads, batch, layer = team.wanted_size(), max(steps.batch_size, 1), group[0]
    if threads > 1 and steps.batch_size >= rows_for_pieces(layer, itemsize):
        return Sharing(row_numbers(0), piece_of(itemsize), False, 1)
    if not stacked(group):
        own_threads = threads // len(group) if threads % len(group) == 0 else threads
        return Sharing(_bounds(layer, steps, itemsize, own_threads), 0, True, 1)
    bounds = _bounds(layer, steps, itemsize, threads)
    least, rows, part = _ABREAST_BY_ROWS if bounds.size else _ABREAST_BY_UNITS
    span = -(-rows // batch)
    even = max(one.work for one in group) <= part * sum(one.work for one in group)
    cached = layer.recurrent_weights * itemsize <= _CACHED_BYTES
    if threads % 2 == 0 and even and cached and steps.seq_len >= least * span:
        return Sharing(_bounds(layer, steps, itemsize, threads // 2), 0, True, span)
    return Sharing(bounds, 0, False, 1)


def _bounds(layer: Layer, steps: Steps, itemsize: int, threads: int) -> np.ndarray:
    """Where to cut the batch, if the threads share out its rows; empty if they share out the units.

    Sharing rows saves a meeting a step, but each thread then reads all recurrent weights in every step: they must fit
    into its cache, the rows must come out even, and be enough for reading not to take longer than multiplying.
    """
    batch, weights = steps.batch_size, layer.recurrent_weights * itemsize
    rows = -(-batch // threads) * threads
    if weights > (_CACHED_BYTES if batch >= _ROWS * threads else _LIGHT_BYTES) or rows * 8 > batch * 9:
        return row_numbers(0)
    return steps.bounds(threads)


def chunk_of(group: Sequence[Layer], batch_size: int) -> int:
    """Steps whose gates are worked on at a time, forward, by all the pseudo-layers that are at work."""
    columns = group[0].columns * (1 if stacked(group) else len(group))
    return max(1, _CHUNK_BYTES // (columns * max(batch_size, 1) * 4))


def steps_of_call(group: Sequence[Layer], batch_size: int, chunk: int) -> int:
    """Steps that a call of a kernel runs: whole chunks, or less where even one has more rows than are listed."""
    batch = max(batch_size, 1)
    listed = max(LISTED_ROWS // batch, 1)
    brief = _CALL_WORK // (sum(layer.work for layer in group) * batch)
    return min(max(brief // chunk, 1) * chunk, listed // chunk * chunk or listed)


def rows_for_pieces(layer: Layer, itemsize: int) -> float:
    """Size of the batch from which on threads that share the units take `piece_of` them at a time, of anybody's share.

    Below it each does its own share: where its weights stay in its cache, or where a step is done sooner than divided.
    """
    weights = layer.recurrent_weights
    return _PIECE_WORK * layer.sizes.hidden / (_PIECE * weights) if weights * itemsize > _CACHED_BYTES else math.inf


def piece_of(itemsize: int) -> int:
    """Panels that a thread takes at a time."""
    return _PIECE * itemsize // VECTOR_BYTES
