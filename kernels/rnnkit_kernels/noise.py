"""Random numbers of training, from the counter-based Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", SC 2011): each depends only on the seed and on its position.

The key is the two words of the seed. The counter's words are the block of units, the number of the sequence in the
whole batch, the step, and the stream, which identifies a layer and one of its noises. Unit u has word u % 64 // 16 of
block u // 64 * 16 + u % 16.
"""

from typing import NamedTuple

import numpy as np

from .machine.arrays import part
from .machine.jit import inner, kernel
from .machine.partition import partition
from .machine.sync import barrier, join, post_call

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
STREAMS = 256  # of a pseudo-layer: those of its noises, and the last one for dropout before the layer
_SIDE = 16  # blocks side by side
_ROUNDS = 10
_ALL_STEPS = 0xFFFFFFFF


class Draw(NamedTuple):
    """A distribution of two values: `one` if a random 32-bit number is below `below`, else `other`."""

    below: int
    one: np.generic | bool
    other: np.generic | bool


def dropout_factor(rate, dtype):
    """Return the distribution of a dropout factor: 0 with probability `rate`, else 1/(1 - rate)."""
    return Draw(round(rate * 2**32), dtype.type(0), dtype.type(0 if rate == 1 else 1 / (1 - rate)))


def bernoulli(rate, dtype):
    """Return the distribution of a Bernoulli number: 1 with probability `rate`, else 0."""
    return Draw(round(rate * 2**32), dtype.type(1), dtype.type(0))


def seed_words(seed):
    """Split a 64-bit seed into two words."""
    return seed & 0xFFFFFFFF, seed >> 32


class Counter(NamedTuple):
    """Counter fields shared by all numbers of a call: where the rows begin in the batch and in the sequence, the
    batch's size, the stream, and the words of the seed. For noise drawn once for all steps `first_step` is -1."""

    batch_size: int
    first_row: int
    first_step: int
    stream: int
    low: int
    high: int


@inner
def philox(block, row, step, stream, low, high):
    """Return four 32-bit words, from a counter and a key given as int64s."""
    c0, c1, c2, c3 = np.uint64(block), np.uint64(row), np.uint64(step), np.uint64(stream)
    k0, k1 = np.uint64(low), np.uint64(high)
    for _ in range(_ROUNDS):
        a, b = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (b >> _HALF) ^ c1 ^ k0, b & _LOW, (a >> _HALF) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + WEYL[0]) & _LOW, (k1 + WEYL[1]) & _LOW
    return c0, c1, c2, c3


@kernel
def draw(target, count, first, units, counter, what, thread_id, size, sync):
    """Fill columns first:first + units of the rows with noise. Row number t*N + n is sequence n at step t; without
    steps it is n."""
    post_call(sync, thread_id, size)
    team = join(sync, thread_id, size)
    rows = partition(count, team.thread_id, team.size)
    for position in range(rows.start, rows.stop):
        number = target.rows[position]
        step, row = number // counter.batch_size + counter.first_step, number % counter.batch_size + counter.first_row
        step = step if counter.first_step >= 0 else _ALL_STEPS
        start = target.start + number * target.stride + first
        _draw_row(part(target.data, start, start + units), row, step, counter, what)
    barrier(team)


@inner
def _draw_row(values, row, step, counter, what):
    group = 4 * _SIDE
    for start in range(0, values.size // group * group, group):
        for j in range(start, start + _SIDE):  # no condition inside, so it is vectorised
            words = philox(j - start // 4 * 3, row, step, counter.stream, counter.low, counter.high)
            values[j] = _drawn(words[0], what)
            values[j + _SIDE] = _drawn(words[1], what)
            values[j + 2 * _SIDE] = _drawn(words[2], what)
            values[j + 3 * _SIDE] = _drawn(words[3], what)
    start = values.size // group * group
    for j in range(start, min(start + _SIDE, values.size)):
        words = philox(j - start // 4 * 3, row, step, counter.stream, counter.low, counter.high)
        values[j] = _drawn(words[0], what)
        if j + _SIDE < values.size:
            values[j + _SIDE] = _drawn(words[1], what)
        if j + 2 * _SIDE < values.size:
            values[j + 2 * _SIDE] = _drawn(words[2], what)
        if j + 3 * _SIDE < values.size:
            values[j + 3 * _SIDE] = _drawn(words[3], what)


@inner
def _drawn(word, what):
    return what.one if word < np.uint64(what.below) else what.other
