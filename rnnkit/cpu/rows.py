"""Packed rows: which rows of a batch run at which step. Only this module turns lengths into row numbers.

If lengths differ, or states are reset, row numbers are listed for all steps. Otherwise one short list, shifted, serves
all steps.

The number of steps is data of a call: `StepRows` serve any batch of as many sequences that is not longer than their
capacity, and so do the kernel calls that are prepared with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.steps import LISTED_ROWS, Resets, Steps, row_numbers
from rnnkit.common.lazy import lazy
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.matrix import CallMatrix, Matrix
from rnnkit_kernels.rows import cut_rows, list_rows

LIST_BYTES = 40
"""Bytes of the lists for each step of each sequence."""

_GROWTH = 4  # a capacity that grows has a quarter more than is needed

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

    `relist` makes them those of another batch, in the same arrays, so that prepared kernel calls stay valid: these read
    the number of steps off the size of `starts`.

    Attributes
    ----------
    capacity : int
        Number of steps of the longest batch, for which arrays are allocated.
    reset_to : tuple
        Hidden and cell states of all pseudo-layers that states are reset to; None means zeros.
    list : callable
        The prepared kernel call that lists the steps; of the rows that are `padded`.
    cuts : dict
        For each number of parts their `bounds`, and the prepared kernel call that writes these.
    """

    with_resets, reset_to = False, (None, None)

    def __init__(
        self, capacity: int, batch_size: int, padded: bool, order: np.ndarray | None = None, resets: bool = False
    ) -> None:
        """`order` is the order of the sequences, if it is not by the lengths passed to `relist`. `resets` says whether
        `relist` will receive resets, which needs `padded`."""
        self.capacity = capacity
        self.cuts: dict[int, tuple[np.ndarray, Callable[[int], None]]] = {}
        self._long_lists: dict[int, tuple[np.ndarray, ...]] = {}
        self.starts = np.empty(capacity + 1, np.int64)
        self._sequences = sequences = np.empty((6, batch_size), np.int64)
        super().__init__(capacity, batch_size, sequences[0], padded)
        self._order, *self._ends = sequences[1:]
        if not padded:
            self._numbers = row_numbers(batch_size)
            self._ends[1][:] = batch_size + self._numbers
            self.relist_evenly(capacity)
            return
        self._lists = np.empty((8 if resets else 5, capacity * batch_size), np.int64)
        self._positions = Rows(row_numbers(capacity * batch_size))
        if order is not None:
            self._order[:] = order
        arguments = self.starts, self._lists, sequences, order is not None
        self.with_resets = resets
        self.list = thread_pool.bound(list_rows, 0, (sequences[0], _NO_MARKS), *arguments)

    @property
    def nbytes(self) -> int:
        """Size of its own lists."""
        return self.starts.nbytes + (self._lists.nbytes + self._positions.numbers.nbytes if self.padded else 0)

    @property
    def is_kept(self) -> bool:
        """Whether `rows_of` returns the same object for the next steps of so many sequences."""
        return self.padded or self.batch_size <= LISTED_ROWS

    def relist(self, seq_len: int, lengths: np.ndarray, resets: Resets | None = None) -> StepRows:
        """Replace the lists by those of sequences of these lengths; returns self, which must be `padded`."""
        self.resets = resets
        self._begin(seq_len)
        self.list((lengths, _NO_MARKS if resets is None else resets.marks.reshape(-1)))
        for _, cut in self.cuts.values():
            cut(0)
        self.seq_len = seq_len
        return self

    def relist_evenly(self, seq_len: int) -> StepRows:
        """Replace the lists by those of sequences of so many steps each; returns self, which must not be `padded`."""
        size, numbers, (final, _, alternating, initial) = self.batch_size, self._numbers, self._ends
        self._begin(seq_len)
        np.multiply(row_numbers(seq_len + 1), size, out=self.starts)
        self.lengths[:] = seq_len
        np.add(numbers, seq_len * size, out=final)
        np.add(numbers, seq_len % 2 * size, out=alternating)
        np.add(numbers, (seq_len + 1) * size, out=initial)
        self.seq_len = seq_len
        return self

    def _begin(self, seq_len: int) -> None:
        """Begin to relist. `seq_len` is set last: after an interrupt the lists are of no batch."""
        self.seq_len = -1
        self.starts.resize(seq_len + 1, refcheck=False)  # in place: kernel calls keep the address of the object

    def states_after(self, states: np.ndarray) -> np.ndarray:
        """Return `after` of the longest batch."""
        return states[1 : self.capacity + 1]

    @lazy
    def whole(self) -> Part:
        """All steps in one part."""
        return self._part(0, self.capacity)

    def parts(self) -> Iterator[Part]:
        """Yield all steps of the longest batch, in parts that begin at position 0."""
        size = self.capacity if self.padded else max(LISTED_ROWS // max(self.batch_size, 1), 1)
        for start in range(0, self.capacity, max(size, 1)):
            yield self.part(start, min(start + size, self.capacity))

    def part(self, start: int, stop: int) -> Part:
        """Return the steps start:stop, of which a call has those that its batch has."""
        return self.whole if stop - start == self.capacity else self._part(start, stop)

    def _part(self, start: int, stop: int) -> Part:
        size, is_whole = self.batch_size, stop - start == self.capacity
        starts = self.starts if is_whole else self.starts[start : stop + 1]  # a view would not be resized with it
        if self.padded:
            rows, batch, next_rows, here, there, *of_resets = map(Rows, self._lists)
            following = rows._replace(shift=size)
            before, *marks = of_resets or (rows, _NO_RESETS, _NO_RESETS)
            places = self._positions, rows, batch, (before, next_rows), following, (here, there)
            return Part(start, stop, starts, *places, tuple(mark.numbers for mark in marks))
        of_part, numbers, batch, alternating = self._regular(stop - start)
        starts = starts if is_whole else of_part
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
        if not self.padded:
            return -(-np.arange(parts + 1) * self.batch_size // parts)
        if parts not in self.cuts:
            bounds = np.empty(parts + 1, np.int64)
            self.cuts[parts] = bounds, thread_pool.bound(cut_rows, 0, 0, bounds, self._sequences)
            self.cuts[parts][1](0)
        return self.cuts[parts][0]

    @lazy
    def initial(self) -> tuple[Rows, Rows]:
        """Rows of the initial states in arrays (T + D, N, ...), forward and reverse."""
        return Rows(row_numbers(self.batch_size)), Rows(self._ends[3])

    @lazy
    def final(self) -> tuple[Rows, Rows]:
        """Rows of the final states in these arrays."""
        return Rows(self._ends[0]), Rows(self._ends[1])

    @lazy
    def double_buffered_ends(self) -> tuple[Rows, Rows]:
        """Rows of the initial and the final states in the two alternating buffers, forward."""
        return Rows(row_numbers(self.batch_size)), Rows(self._ends[2])


def rows_of(steps: Steps, arena: Arena, limit: int, hx: Any = None, cx: Any = None) -> StepRows:
    """Return the row numbers of the steps; hx and cx are what resets may be to. The object is reused, and overwritten,
    by the next steps of so many sequences in this arena. `limit` is that of `serves`."""
    seq_len, batch_size, resets = steps.seq_len, steps.batch_size, steps.resets is not None
    listed = resets or steps.padded
    rows = arena.rows.get((batch_size, listed, resets))
    if not listed and rows is not None and rows.seq_len == seq_len:  # as the last batch
        return rows
    if not listed and batch_size > LISTED_ROWS:
        return same_length(seq_len, batch_size)
    if rows is None or not serves(rows.capacity, seq_len, limit):
        capacity = seq_len if rows is None else grown(seq_len, limit)
        rows = StepRows(capacity, batch_size, padded=listed, resets=resets)
        arena.rows[batch_size, listed, resets] = rows
    if not listed:
        return rows.relist_evenly(seq_len)
    rows.reset_to = steps.resets.to(hx, cx) if resets else (None, None)
    return rows.relist(seq_len, steps.lengths, steps.resets)


def serves(capacity: int, seq_len: int, limit: int) -> bool:
    """Return whether what is prepared for `capacity` steps serves a batch of so many. Above `limit` steps, a kernel
    call has only some of them, which are others in a shorter batch."""
    return seq_len == capacity or seq_len < capacity <= limit


def grown(seq_len: int, limit: int) -> int:
    """Return the capacity for a batch that needs more than there was: more than its number of steps, because programs
    in which the number of steps changes once change it again."""
    return max(seq_len, min(seq_len + seq_len // _GROWTH, limit))


def segment_of(
    steps: Steps, start: int, stop: int, order: np.ndarray | None = None, hx: Any = None, cx: Any = None
) -> StepRows:
    """Return the steps start:stop as a batch, its sequences in this order, or the longest first. Resets may be to hx
    and cx of the whole batch."""
    count, resets = stop - start, steps.resets
    if not steps.listed:
        return same_length(count, steps.batch_size)
    rows = StepRows(count, steps.batch_size, True, order, resets is not None)
    rows.reset_to = (None, None) if resets is None else resets.to(hx, cx)
    lengths = np.clip(steps.lengths - start, 0, count)
    return rows.relist(count, lengths, None if resets is None else resets.part(start, stop))


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
