"""Steps that a mask skips: the engine runs the others alone, as a batch of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit.common.lazy import lazy


class Mask:
    """Which steps of a batch run; the state stays as it is at the others.

    Sequence n has counts[n] steps that run. Those of all sequences, one after the other from step 0 on, are the batch
    that the engine sees, of `longest` steps.

    Parameters
    ----------
    listed : (T, N) bool, C-contiguous
        The steps that run, none of them beyond a sequence's length.
    lengths : (N,) int64, optional
        None: T for all.
    """

    def __init__(self, listed: np.ndarray, lengths: np.ndarray | None) -> None:
        self.seq_len, self.batch_size = listed.shape
        self.listed = listed
        self.counts = np.add.reduce(listed, 0, np.int64)
        self.lengths = self.counts[:0] if lengths is None else lengths  # empty: T for all
        self.longest = int(self.counts[self.counts.argmax()]) if self.batch_size else 0
        self.rows: Any = None  # the engine's lists

    @property
    def skips(self) -> bool:
        """Whether it skips any step."""
        if self.lengths.size:
            return bool((self.counts != self.lengths).any())
        return self.batch_size > 0 and bool(self.counts[self.counts.argmin()] < self.seq_len)

    def taken(self, array: np.ndarray) -> np.ndarray:
        """Return the steps that run of an array (T, N), as (longest, N); zeros beyond them."""
        found, (t, n) = np.zeros((self.longest, self.batch_size), array.dtype), np.nonzero(self.listed)
        found[self.numbers[t, n] - 1, n] = array[t, n]
        return found

    def spread(self, array: np.ndarray) -> np.ndarray:
        """Return an array (longest, N, ...) of the steps that run at all steps, (T, N, ...); zeros at the others."""
        found, (t, n) = np.zeros((self.seq_len, *array.shape[1:]), array.dtype), np.nonzero(self.listed)
        found[t, n] = array[self.numbers[t, n] - 1, n]
        return found

    def states_of_all(self, after: np.ndarray, initial: np.ndarray, direction: int) -> np.ndarray:
        """Return the states of a direction after all steps, (T, N, H), from those after the steps that run, of shape
        (longest, N, H), and the initial ones, (N, H); zeros beyond the lengths."""
        last = self.numbers if direction == 0 else self.numbers - self.listed + 1
        last = np.where(last > self.counts, 0, last)  # steps that run up to this one; the initial state is before all
        found = np.concatenate([initial[None], after])[last, np.arange(self.batch_size)]
        if self.lengths.size:
            found[np.arange(self.seq_len)[:, None] >= self.lengths] = 0
        found.flags.writeable = False
        return found

    @lazy
    def numbers(self) -> np.ndarray:
        """(T, N): the number of steps that run up to each, with it."""
        return np.cumsum(self.listed, 0)
