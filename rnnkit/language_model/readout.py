"""From the network's outputs to scores of the next byte, and back: products and softmax, block by block of rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from rnnkit import training
from rnnkit.kernels.machine.forks import after_fork_in_child

BLOCK_ROWS = 128  # rows at once: their outputs, scores and gradients stay in the L2 cache


class Readout:
    """A dense layer and the softmax over its scores, on as many threads as the engine has.

    A product of NumPy runs on one thread where BLAS may use no more, and BLAS's own threads would spin on the cores
    that the engine needs. Blocks are of one size and summed in order: the bits do not depend on the number of threads.

    Parameters
    ----------
    weight, bias : ndarray (C, P), (C,)
        Kept by reference, as are those of the gradient.
    weight_gradient, bias_gradient : ndarray (C, P), (C,)
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, weight_gradient: np.ndarray, bias_gradient: np.ndarray
    ):
        self._weight, self._bias = weight, bias
        self._weight_gradient, self._bias_gradient = weight_gradient, bias_gradient
        self._scores = self._weight_parts = self._bias_parts = np.empty(0)

    def scores(self, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the scores (rows, C) before softmax for outputs of the network (rows, P)."""
        scores = np.matmul(y, self._weight.T, out=out)
        scores += self._bias
        return scores

    def add_gradient(
        self, y: np.ndarray, targets: np.ndarray, count: int, mask: np.ndarray | None = None
    ) -> tuple[float, np.ndarray]:
        """Return the summed loss of all rows and its gradient by y, over count; add those by weight and bias.

        Parameters
        ----------
        y : ndarray (rows, P)
        targets : ndarray (rows,), integers
        count : int
            What the loss is divided by before its gradient is taken.
        mask : ndarray (rows, P), optional
            Of dropout: what y is multiplied with before the product.
        """
        blocks = range(0, len(y), BLOCK_ROWS)
        self._make_room(len(y), len(blocks))
        dy = np.empty_like(y)

        def add_block(number: int) -> float:
            rows = slice(blocks[number], blocks[number] + BLOCK_ROWS)
            kept = None if mask is None else mask[rows]
            outputs = y[rows] if kept is None else y[rows] * kept
            scores = self.scores(outputs, self._scores[rows])
            nats = training.softmax_cross_entropy(scores, targets[rows], count=count, out=scores).losses
            np.matmul(scores.T, outputs, out=self._weight_parts[number])
            np.sum(scores, axis=0, out=self._bias_parts[number])
            np.matmul(scores, self._weight, out=dy[rows])
            if kept is not None:
                dy[rows] *= kept
            return float(nats.sum(dtype=np.float64))

        nats = sum(_on_all_threads(add_block, len(blocks)))
        self._weight_gradient += self._weight_parts.sum(axis=0)
        self._bias_gradient += self._bias_parts.sum(axis=0)
        return nats, dy

    def _make_room(self, rows: int, blocks: int) -> None:
        num_classes, _ = self._weight.shape
        if self._scores.shape != (rows, num_classes):
            self._scores = np.empty((rows, num_classes), self._weight.dtype)
            self._weight_parts = np.empty((blocks, *self._weight.shape), self._weight.dtype)
            self._bias_parts = np.empty((blocks, num_classes), self._weight.dtype)


def _on_all_threads(function, count: int) -> list[float]:
    from rnnkit.kernels.machine.team import wanted_size  # which brings Numba

    size = min(wanted_size(), count)
    if size <= 1:
        return [function(number) for number in range(count)]
    return list(_threads(size).map(function, range(count)))


@lru_cache(maxsize=1)
def _threads(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix="rnnkit-readout")


after_fork_in_child(_threads.cache_clear)
