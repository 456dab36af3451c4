"""Steps that a mask skips: the engine runs the others alone, and row numbers lead from the batch to them and back."""

from __future__ import annotations

import numpy as np

from rnnkit.common.lazy import lazy


class Mask:
    """Which steps of a batch run; the state stays as it is at the others.

    Sequence n has counts[n] steps that run. Those of all sequences, one after the other from step 0 on, are the batch
    that the engine sees, of `max_count` steps. Row numbers count rows (t, n, d) of arrays of either batch; with one
    direction, or for arrays that have no directions, D = 1.

    Parameters
    ----------
    listed : (T, N) bool
        The steps that run, none of them beyond a sequence's length.
    lengths : (N,) int64, optional
        None: T for all.
    """

    def __init__(self, listed: np.ndarray, lengths: np.ndarray | None) -> None:
        self.listed, self.lengths = np.ascontiguousarray(listed), lengths
        self.seq_len, self.batch_size = listed.shape
        self._before = np.cumsum(self.listed, 0)  # running steps up to this one, with it
        self.counts = self._before[-1] if self.seq_len else np.zeros(self.batch_size, np.int64)
        self.max_count = int(self.counts.max(initial=0))

    @lazy
    def places(self) -> np.ndarray:
        """(T, N): the row of each step among those that run; -1 if it does not."""
        rows = (self._before - 1) * self.batch_size + np.arange(self.batch_size)
        return np.where(self.listed, rows, -1)

    @lazy
    def sources(self) -> np.ndarray:
        """(max_count, N): the row in the batch of each step that runs; -1 beyond them."""
        found = np.full(self.max_count * self.batch_size, -1)
        rows = np.flatnonzero(self.listed)
        found[self.places.reshape(-1)[rows]] = rows
        return found.reshape(self.max_count, self.batch_size)

    def taken(self, array: np.ndarray) -> np.ndarray:
        """Return the steps that run of an array (T, N), as (max_count, N); zeros beyond them."""
        found = np.zeros((self.max_count, self.batch_size), array.dtype)
        found.reshape(-1)[self.places[self.listed]] = array[self.listed]
        return found

    def states(self, directions: tuple[int, ...]) -> np.ndarray:
        """(T, N, D): the row of the state after each step, of directions 0 and 1 or of one of them.

        It is one of (max_count, N, D) states after the steps that run, or of (N, D) initial ones behind them; -1 beyond
        the length.
        """
        sequences, found = np.arange(self.batch_size), np.empty((*self.listed.shape, len(directions)), np.int64)
        for column, direction in enumerate(directions):
            last = self._before - 1 if direction == 0 else self._before - self.listed
            is_initial = last < 0 if direction == 0 else last >= self.counts
            rows = np.where(is_initial, self.max_count, last) * self.batch_size + sequences
            found[:, :, column] = rows * len(directions) + column
        if self.lengths is not None:
            found[np.arange(self.seq_len)[:, None] >= self.lengths] = -1
        return found

    def states_of_all(self, after: np.ndarray, initial: np.ndarray, directions: tuple[int, ...]) -> np.ndarray:
        """Return the states after all steps, (T, N, D*P), from those after the steps that run, (max_count, N, D*P), and
        the initial ones, (2, N, D*P) or (1, N, D*P): of direction d in row d."""
        count, shape = len(directions), (*self.listed.shape, after.shape[-1])
        size = shape[-1] // count
        own = [initial[d, :, column * size : (column + 1) * size] for column, d in enumerate(directions)]
        initial, zeros = np.stack(own, 1), np.zeros((1, size), after.dtype)
        rows = np.concatenate([after.reshape(-1, size), initial.reshape(-1, size), zeros])  # row -1 is zeros
        found = rows[self.states(directions)].reshape(shape)
        found.flags.writeable = False
        return found
