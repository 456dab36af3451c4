"""Losses on NumPy arrays: calls of their kernels."""

from __future__ import annotations

import numpy as np

from rnnkit.cpu.layer import contiguous
from rnnkit_kernels import losses
from rnnkit_kernels.machine import thread_pool

_WORK = 16  # cost of one score, in multiply-adds


def softmax_cross_entropy(scores: np.ndarray, targets: np.ndarray, count: float, gradient: np.ndarray) -> np.ndarray:
    """Write the gradient (rows, C), which may alias the scores, and return the losses (rows,)."""
    result = np.empty(len(scores), scores.dtype)
    if scores.size:
        lanes = np.empty(thread_pool.max_threads() * losses.ROW_LANES, scores.dtype)
        arrays = gradient.reshape(-1), result, contiguous(scores).reshape(-1), contiguous(targets), lanes
        thread_pool.run(losses.softmax_cross_entropy, _WORK * scores.size, *arrays, scores.shape[1], count)
    return result


def sigmoid_cross_entropy(scores: np.ndarray, targets: np.ndarray, count: float, gradient: np.ndarray) -> np.ndarray:
    """Write the gradient, which may alias the scores, and return the losses, of the scores' shape."""
    result = np.empty(scores.shape, scores.dtype)
    arrays = gradient, result, contiguous(scores), contiguous(targets)
    losses.sigmoid_cross_entropy(*(array.reshape(-1) for array in arrays), count)
    return result
