"""Losses and their gradients, entry by entry.

A row of scores is summed as `training.sum_of` sums an array: number i is added to lane i % ROW_LANES, then the lanes
are added in order. So the sum does not depend on the width of the vector registers.
"""

import numpy as np
from numba import types

from .machine.activations import exp, fma, sigmoid
from .machine.arrays import part
from .machine.jit import inner, kernel
from .machine.partition import partition
from .machine.small import SMALL, flushed
from .machine.sync import barrier, join, post_call

ROW_LANES = 32
_LOG2 = 0.6931471805599453
_SMALL = SMALL[types.float32]


@inner
def _log1p(u, real):
    """log(1 + u) for 0 <= u <= 1, by the series of `cells.activations.softplus`; `real`: type of its constants."""
    s = u / (real(2) + u)
    q, one = fma(s, s, real(_SMALL)), real(1)  # the square of a small s would be subnormal
    t = fma(q, fma(q, fma(q, real(1 / 31), real(1 / 29)), real(1 / 27)), real(1 / 25))
    t = fma(q, fma(q, fma(q, fma(q, t, real(1 / 23)), real(1 / 21)), real(1 / 19)), real(1 / 17))
    t = fma(q, fma(q, fma(q, fma(q, t, real(1 / 15)), real(1 / 13)), real(1 / 11)), real(1 / 9))
    t = fma(q, fma(q, fma(q, fma(q, t, real(1 / 7)), real(1 / 5)), real(1 / 3)), one)
    return (s + s) * t


@inner
def _log(x):
    """The natural logarithm of a float64 of at least 1."""
    n, m = 0.0, x
    while m >= 2.0:
        n, m = n + 1.0, m * 0.5
    return fma(n, _LOG2, _log1p(m - 1.0, np.float64))


@inner
def maximum(values, lanes):
    """Return the largest number; undefined if there is a NaN."""
    whole, most = values.size - values.size % lanes.size, values[0]
    for j in range(lanes.size):
        lanes[j] = most
    for start in range(0, whole, lanes.size):
        for j in range(lanes.size):
            value, known = values[start + j], lanes[j]
            lanes[j] = value if value > known else known
    for j in range(values.size - whole):
        value, known = values[whole + j], lanes[j]
        lanes[j] = value if value > known else known
    for j in range(lanes.size):
        most = lanes[j] if lanes[j] > most else most
    return most


@inner
def _sum(values, lanes):
    count, whole, total = lanes.size, values.size - values.size % lanes.size, values.dtype.type(0)
    for j in range(count):
        lanes[j] = 0
    for start in range(0, whole, count):
        for j in range(count):
            lanes[j] += values[start + j]
    for j in range(values.size - whole):
        lanes[j] += values[whole + j]
    for j in range(count):
        total += lanes[j]
    return total


@kernel
def softmax_cross_entropy(gradient, losses, scores, targets, lanes, columns, count, thread_id, size, sync):
    """Write -ln p(target) of each row, p being the softmax of its scores, and the gradient (p - onehot)/count.

    The gradient may overwrite the scores; `lanes` is scratch for all threads.
    """
    post_call(sync, thread_id, size)
    team = join(sync, thread_id, size)
    real, own = scores.dtype.type, part(lanes, team.thread_id * ROW_LANES, (team.thread_id + 1) * ROW_LANES)
    rows, divisor = partition(losses.size, team.thread_id, team.size), real(count)
    for row in range(rows.start, rows.stop):
        values = part(scores, row * columns, (row + 1) * columns)
        result = part(gradient, row * columns, (row + 1) * columns)
        most = maximum(values, own)
        target = values[targets[row]] - most
        for j in range(columns):
            result[j] = exp(values[j] - most)
        total = _sum(result, own)
        losses[row] = real(_log(np.float64(total))) - target
        scale = real(1) / (total * divisor)  # one division per row, not per score
        for j in range(columns):
            result[j] = flushed(result[j] * scale)
        result[targets[row]] -= real(1) / divisor
    barrier(team)


@kernel
def sigmoid_cross_entropy(gradient, losses, scores, targets, count):
    """Write the loss of each entry, max(s, 0) - s*t + log(1 + exp(-|s|)), and the gradient (sigmoid(s) - t)/count.

    The gradient may overwrite the scores.
    """
    real = scores.dtype.type
    zero, factor = real(0), real(1.0 / count)
    for i in range(scores.size):
        s, t = scores[i], targets[i]
        losses[i] = (s if s > zero else zero) - s * t + _log1p(exp(-abs(s)), real)
        gradient[i] = flushed((sigmoid(s) - t) * factor)
