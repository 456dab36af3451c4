"""Which rows of a batch run at which step: the one place where lengths turn into row numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

Index = tuple[Any, Any]
"""Which of the states (..., N, size) are meant, one for each sequence: a step or steps, and the sequences."""

_ALL = slice(None)


class CellRows(NamedTuple):
    """Rows of the cell states before and after each step, and where among (..., N, H) each sequence begins and ends."""

    before: np.ndarray
    after: np.ndarray
    initial: Index
    final: Index


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

    @cached_property
    def initial(self) -> tuple[Index, Index]:
        """Where the initial states stand in arrays (T + D, N, ...), forward and reverse."""
        return (0, _ALL), (self.seq_len + 1, _ALL)

    @cached_property
    def final(self) -> tuple[Index, Index]:
        """Where the final states stand in arrays (T + D, N, ...), forward and reverse."""
        first = np.where(self.lengths > 0, 1, self.seq_len + 1)
        return self._index(self.lengths), self._index(first)

    def _index(self, place: np.ndarray) -> Index:
        """The states of all sequences, each at its own place: without padding one place, which is quicker to index."""
        if self.padded or not place.size:
            return place, np.arange(self.batch_size)
        return int(place[0]), _ALL

    @cached_property
    def kept_cells(self) -> tuple[CellRows, CellRows]:
        """The rows of cells that are kept for every step, (T + D, N, H), forward and reverse."""
        return tuple(map(CellRows, self.previous, (self.states, self.states), self.initial, self.final))

    @cached_property
    def passing_cells(self) -> tuple[CellRows, CellRows]:
        """The rows of cells that stand in one of two places in turn, (2, N, H), forward and reverse."""
        odd = self.rows // max(self.batch_size, 1) % 2
        here, there = odd * self.batch_size + self.batch, (1 - odd) * self.batch_size + self.batch
        first, last = (0, _ALL), self._index(self.lengths % 2)
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
