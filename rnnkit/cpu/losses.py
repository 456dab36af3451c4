"""Losses on NumPy arrays: the calls of their kernels."""

from __future__ import annotations

import numpy as np

from rnnkit.cpu.layer import dense as as_dense
from rnnkit.kernels import losses
from rnnkit.kernels.machine import team

_WORK = 16  # multiply-adds in the time that a score takes


def softmax_cross_entropy(scores: np.ndarray, targets: np.ndarray, count: float, gradient: np.ndarray) -> np.ndarray:
    """Write the gradient (rows, C), which may be where the scores are, and return the losses (rows,)."""
    found = np.empty(len(scores), scores.dtype)
    if scores.size:
        lanes = np.empty(team.max_threads() * losses.ROW_LANES, scores.dtype)
        arrays = gradient.reshape(-1), found, as_dense(scores).reshape(-1), as_dense(targets), lanes
        team.run(losses.softmax_cross_entropy, _WORK * scores.size, *arrays, scores.shape[1], count)
    return found


def sigmoid_cross_entropy(scores: np.ndarray, targets: np.ndarray, count: float, gradient: np.ndarray) -> np.ndarray:
    """Write the gradient, which may be where the scores are, and return the losses, of the scores' shape."""
    found = np.empty(scores.shape, scores.dtype)
    arrays = gradient, found, as_dense(scores), as_dense(targets)
    losses.sigmoid_cross_entropy(*(array.reshape(-1) for array in arrays), count)
    return found
