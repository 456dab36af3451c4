"""Packed rows: which rows of a batch run at which step. Only this module turns lengths into row numbers.

If lengths differ, or states are reset, row numbers are listed for all steps. Otherwise one short list, shifted, serves
all steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.steps import LISTED_ROWS, Resets, Steps, row_numbers
from rnnkit.common.lazy import lazy
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.matrix import CallMatrix, Matrix
from rnnkit_kernels.rows import list_rows

LIST_BYTES = 40
"""Bytes of the lists for each step of each sequence."""

_NO_MARKS = np.empty(0, np.uint8)
_NO_NUMBERS = {np.dtype(name): np.empty(0, name) for name in ("float32", "float64")}


class Rows(NamedTuple):
    """Row numbers of the positions of a part in one kind of array: a list plus `shift`."""

    numbers: np.ndarray
    shift: int = 0

    def of(self, array: np.ndarray, column: int = 0) -> Matrix:
        """Return these rows of a contiguous array (..., width), from a column on, for a kernel."""
        width = array.shape[-1]
        return Matrix(array.reshape(-1), self.numbers, self.shift * width + column, width)

    def or_call_data(self, array: np.ndarray | None, width: int, dtype: np.dtype, column: int = 0) -> CallMatrix:
        """Return `of(array)`; for None, rows of an array of this width that is passed to each call."""
        if array is not None:
            return CallMatrix(self.of(array, column), False)
        return CallMatrix(Matrix(_NO_NUMBERS[dtype], self.numbers, self.shift * width + column, width), True)


_NO_RESETS = Rows(np.empty(0, np.int64))


class Part(NamedTuple):
    """The steps start:stop of a batch, as kernels read them: positions (t, n) ordered by t, and within a step by
    descending length.

    The fields are the row numbers of the positions in each kind of array. If lengths differ, the lists are those of all
    steps, and `rows` also has the rows of the padding at its end.
    """

    start: int
    stop: int
    starts: np.ndarray  # step start + i has the positions starts[i]:starts[i + 1]
    positions: Rows  # in arrays with one row for each position of all steps
    rows: Rows  # (T, N, ...)
    batch: Rows  # (N, ...)
    previous: tuple[Rows, Rows]  # the state before the step in arrays `Steps.states_shape`, forward and reverse
    following: Rows  # the state after it, in both directions
    double_buffered: tuple[Rows, Rows]  # before and after the step, in two alternating buffers of states, (2, N, ...)
    reset_marks: tuple[np.ndarray, np.ndarray]  # 1 if the next step resets, forward and reverse; empty: no resets

    @property
    def listed(self) -> Rows:
        """Positions in buffers of a chunk: kernels count from its first position."""
        return Rows(self.positions.numbers)

    @property
    def count(self) -> int:
        """Number of positions."""
        return int(self.starts[-1] - self.starts[0])

    def states(self, direction: int, double_buffered: bool) -> tuple[Rows, Rows]:
        """Return the rows of the states before and after the step, in arrays of all steps or in two buffers."""
        if double_buffered:
            return self.double_buffered if direction == 0 else self.double_buffered[::-1]
        return self.previous[direction], self.following


class StepRows(Steps):
    """The steps of a batch with their row numbers.

    If lengths differ, or states are reset, `relist` lists the rows of each new batch in the same arrays, so that
    prepared kernel calls stay valid.

    Attributes
    ----------
    reset_to : tuple
        Hidden and cell states of all pseudo-layers that states are reset to; None means zeros.
    """

    with_resets, reset_to = False, (None, None)

    def __init__(
        self, seq_len: int, batch_size: int, padded: bool, order: np.ndarray | None = None, resets: bool = False
    ) -> None:
        """`order` is the order of the sequences, if it is not by the lengths passed to `relist`. `resets` says whether
        `relist` will receive resets, which needs `padded`."""
        self._bounds: dict[int, np.ndarray] = {}
        self._long_lists: dict[int, tuple[np.ndarray, ...]] = {}
        if not padded:
            super().__init__(seq_len, batch_size, np.full(batch_size, seq_len), False)
            return
        self.starts = np.empty(seq_len + 1, np.int64)
        self._lists = np.empty((8 if resets else 5, seq_len * batch_size), np.int64)
        sequences, self._positions = np.empty((5, batch_size), np.int64), Rows(row_numbers(seq_len * batch_size))
        super().__init__(seq_len, batch_size, sequences[0], True)
        self._order, *self._ends = sequences[1:]
        if order is not None:
            self._order[:] = order
        arguments = self.starts, self._lists, sequences, order is not None
        self.with_resets = resets
        self._list = thread_pool.bound(list_rows, 0, (sequences[0], _NO_MARKS), *arguments)

    @property
    def is_kept(self) -> bool:
        """Whether `rows_of` returns the same object for the next steps of this size."""
        return self.padded or self.batch_size <= LISTED_ROWS

    def relist(self, lengths: np.ndarray, resets: Resets | None = None) -> StepRows:
        """Replace the lists by those of sequences of these lengths; returns self, which must be `padded`."""
        self.resets = resets
        self._list((lengths, _NO_MARKS if resets is None else resets.marks.reshape(-1)))
        for parts, bounds in self._bounds.items():
            bounds[:] = self._cut(parts)
        return self

    @lazy
    def whole(self) -> Part:
        """All steps in one part."""
        return self._part(0, self.seq_len)

    def parts(self) -> Iterator[Part]:
        """Yield all steps, in parts that begin at position 0."""
        size = self.seq_len if self.padded else LISTED_ROWS // max(self.batch_size, 1)
        for start in range(0, self.seq_len, max(size, 1)):
            yield self.part(start, min(start + max(size, 1), self.seq_len))

    def part(self, start: int, stop: int) -> Part:
        """Return the steps start:stop."""
        return self.whole if stop - start == self.seq_len else self._part(start, stop)

    def _part(self, start: int, stop: int) -> Part:
        size = self.batch_size
        if self.padded:
            rows, batch, next_rows, here, there, *of_resets = map(Rows, self._lists)
            starts, following = self.starts[start : stop + 1], rows._replace(shift=size)
            before, *marks = of_resets or (rows, _NO_RESETS, _NO_RESETS)
            places = self._positions, rows, batch, (before, next_rows), following, (here, there)
            return Part(start, stop, starts, *places, tuple(mark.numbers for mark in marks))
        starts, numbers, batch, alternating = self._regular(stop - start)
        moved, odd, count = start * size, start % 2 * size, numbers.size
        double_buffered = Rows(alternating[odd : odd + count]), Rows(alternating[odd + size : odd + size + count])
        rows, following = Rows(numbers, moved), Rows(numbers, moved + size)
        previous = rows, Rows(numbers, moved + 2 * size)
        marks = _NO_RESETS.numbers, _NO_RESETS.numbers
        return Part(start, stop, starts, rows, rows, Rows(batch), previous, following, double_buffered, marks)

    def _regular(self, steps: int) -> tuple[np.ndarray, ...]:
        """Return the lists of a part without padding: starts, rows, batch, and alternating (one step longer)."""
        if steps * self.batch_size <= LISTED_ROWS:
            return _kept_lists(self.batch_size, steps)
        if steps not in self._long_lists:
            self._long_lists[steps] = _lists(self.batch_size, steps)
        return self._long_lists[steps]

    def bounds(self, parts: int) -> np.ndarray:
        """Return (parts + 1,) int64, the row boundaries in every step that balance the work of so many parts."""
        if parts not in self._bounds:
            self._bounds[parts] = self._cut(parts)
        return self._bounds[parts]

    def _cut(self, parts: int) -> np.ndarray:
        done = np.concatenate([[0], np.cumsum(-np.sort(-self.lengths))])
        return np.searchsorted(done, np.arange(parts + 1) * done[-1] / parts)

    @lazy
    def initial(self) -> tuple[Rows, Rows]:
        """Rows of the initial states in arrays (T + D, N, ...), forward and reverse."""
        numbers = row_numbers(self.batch_size)
        return Rows(numbers), Rows(numbers, (self.seq_len + 1) * self.batch_size)

    @lazy
    def final(self) -> tuple[Rows, Rows]:
        """Rows of the final states in these arrays."""
        if self.padded:
            return Rows(self._ends[0]), Rows(self._ends[1])
        numbers = row_numbers(self.batch_size)
        return Rows(numbers, self.seq_len * self.batch_size), Rows(numbers, self.batch_size)

    @lazy
    def double_buffered_ends(self) -> tuple[Rows, Rows]:
        """Rows of the initial and the final states in the two alternating buffers, forward."""
        numbers = row_numbers(self.batch_size)
        return Rows(numbers), Rows(self._ends[2]) if self.padded else Rows(numbers, self.seq_len % 2 * self.batch_size)


def rows_of(steps: Steps, arena: Arena, hx: Any = None, cx: Any = None) -> StepRows:
    """Return the row numbers of the steps; hx and cx are what resets may be to. The object is reused, and overwritten,
    by the next steps of this size in this arena."""
    kept, size, resets = arena.rows, (steps.seq_len, steps.batch_size), steps.resets is not None
    if kept is not None and (kept.seq_len, kept.batch_size, kept.with_resets) != (*size, resets):
        kept = arena.rows = None
    if not steps.listed:
        return same_length(*size)
    if kept is None:
        kept = arena.rows = StepRows(*size, padded=True, resets=resets)
    kept.reset_to = (hx, cx) if resets and steps.resets.from_hx else (None, None)
    return kept.relist(steps.lengths, steps.resets)


def segment_of(
    steps: Steps, start: int, stop: int, order: np.ndarray | None = None, hx: Any = None, cx: Any = None
) -> StepRows:
    """Return the steps start:stop as a batch, its sequences in this order, or the longest first. Resets may be to hx
    and cx of the whole batch."""
    count, resets = stop - start, steps.resets
    if not steps.listed:
        return same_length(count, steps.batch_size)
    rows = StepRows(count, steps.batch_size, True, order, resets is not None)
    rows.reset_to = (hx, cx) if resets is not None and resets.from_hx else (None, None)
    lengths = np.clip(steps.lengths - start, 0, count)
    return rows.relist(lengths, None if resets is None else resets.part(start, stop))


def same_length(seq_len: int, batch_size: int) -> StepRows:
    """Return the row numbers of sequences that all have `seq_len` steps."""
    return _kept_rows(seq_len, batch_size) if batch_size <= LISTED_ROWS else StepRows(seq_len, batch_size, padded=False)


@lru_cache(maxsize=4)
def _kept_rows(seq_len: int, batch_size: int) -> StepRows:
    return StepRows(seq_len, batch_size, padded=False)


def _lists(batch_size: int, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rows = row_numbers(steps * batch_size)
    alternating = np.tile(np.arange(2 * batch_size), steps // 2 + 2)
    return np.arange(steps + 1) * batch_size, rows, alternating[: rows.size] % max(batch_size, 1), alternating


_kept_lists = lru_cache(maxsize=8)(_lists)
