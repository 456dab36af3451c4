"""Which rows of a batch run at which step: the one place where lengths turn into row numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np


class CellRows(NamedTuple):
    """Rows of the cell states before and after each step, and in which (N, H) part each sequence begins and ends."""

    before: np.ndarray
    after: np.ndarray
    initial: np.ndarray
    final: np.ndarray


@dataclass(frozen=True, eq=False)
class Steps:
    """The valid steps (t, n) of a batch, t by t; within a step the longest sequences first.

    Row numbers are those of arrays (T, N, ...), named `rows`, and of arrays with an initial state in front and, for two
    directions, one behind, (T + D, N, ...): there step t stands at t + 1. Arrays are int64 (number of valid steps,).
    """

    seq_len: int
    batch_size: int
    lengths: np.ndarray  # (N,)
    starts: np.ndarray  # (T + 1,): step t has the positions starts[t]:starts[t + 1]
    rows: np.ndarray
    batch: np.ndarray  # n
    states: np.ndarray  # row of the state after the step, in both directions
    previous: tuple[np.ndarray, np.ndarray]  # row of the state before the step, forward and reverse
    _bounds: dict[int, np.ndarray] = field(default_factory=dict, init=False)

    @property
    def rows_in_all(self) -> int:
        """Rows of an array (T, N, ...), padding included."""
        return self.seq_len * self.batch_size

    @property
    def padded(self) -> bool:
        """Whether any sequence is shorter than T."""
        return self.rows.size < self.rows_in_all

    def bounds(self, parts: int) -> np.ndarray:
        """Return (parts + 1,) int64 where to cut the rows of every step, so that each part has its share."""
        if parts not in self._bounds:
            done = np.concatenate([[0], np.cumsum(-np.sort(-self.lengths))])
            self._bounds[parts] = np.searchsorted(done, np.arange(parts + 1) * done[-1] / parts)
        return self._bounds[parts]

    def initial(self, direction: int) -> int:
        """Return where the initial state stands in arrays (T + D, N, ...)."""
        return self.seq_len + 1 if direction else 0

    @cached_property
    def final(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each sequence's final state stands in arrays (T + D, N, ...), (N,), forward and reverse."""
        return self.lengths, np.where(self.lengths > 0, 1, self.initial(1))

    @cached_property
    def kept_cells(self) -> tuple[CellRows, CellRows]:
        """The rows of cells that are kept for every step, (T + D, N, H), forward and reverse."""
        initial = (np.full(self.batch_size, self.initial(direction)) for direction in (0, 1))
        return tuple(map(CellRows, self.previous, (self.states, self.states), initial, self.final))

    @cached_property
    def passing_cells(self) -> tuple[CellRows, CellRows]:
        """The rows of cells that stand in one of two places in turn, (2, N, H), forward and reverse."""
        odd = self.rows // max(self.batch_size, 1) % 2
        here, there = odd * self.batch_size + self.batch, (1 - odd) * self.batch_size + self.batch
        first, last = np.zeros_like(self.lengths), self.lengths % 2
        return CellRows(here, there, first, last), CellRows(there, here, last, first)


def steps_of(seq_len: int, batch_size: int, lengths: object = None) -> Steps:
    """Return the steps of a batch of these lengths; None is all `seq_len`."""
    if lengths is None:
        return _full(seq_len, batch_size)
    return _steps(seq_len, batch_size, np.array(lengths, np.int64).reshape(batch_size))


@lru_cache(maxsize=4)  # a training loop asks for the same again and again
def _full(seq_len: int, batch_size: int) -> Steps:
    return _steps(seq_len, batch_size, np.full(batch_size, seq_len, np.int64))


def _steps(seq_len: int, batch_size: int, lengths: np.ndarray) -> Steps:
    order = np.argsort(-lengths, kind="stable")
    t, position = np.nonzero(np.arange(seq_len)[:, None] < lengths[order])
    batch = order[position]
    rows = t * batch_size + batch
    starts = np.searchsorted(t, np.arange(seq_len + 1))
    following = np.where(t + 1 < lengths[batch], t + 2, seq_len + 1) * batch_size + batch
    return Steps(seq_len, batch_size, lengths, starts, rows, batch, rows + batch_size, (rows, following))
