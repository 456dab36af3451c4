"""Which rows of a batch run at which step: the one place where lengths turn into row numbers.

Where sequences differ in length, row numbers are listed for all steps. Where they do not, they are arithmetic: the
numbers of a few steps serve for all of them, shifted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.lazy import lazy

Index = tuple[Any, Any]
"""Which of the states (..., N, size) are meant, one for each sequence: a step or steps, and the sequences."""

LISTED_ROWS = 1 << 16
"""Row numbers that are kept between calls."""

_GRADIENT_BYTES = 4096
"""Bytes of a column of a chunk of gradients: as many rows as a product works through at once (`gemm.depth_block`)."""

_ALL = slice(None)


class Rows(NamedTuple):
    """Row numbers of some positions: those of the list, plus `shift`."""

    numbers: np.ndarray
    shift: int = 0


class Part(NamedTuple):
    """The steps start:stop of a batch, as kernels are told of them: positions (t, n), t by t, within a step the
    longest sequences first.

    Row numbers are those of arrays (T, N, ...), named `rows`, of arrays (N, ...), `batch`, and of arrays with an
    initial state in front and, for two directions, one behind, (T + D, N, ...): there step t stands at t + 1.
    """

    start: int
    stop: int
    count: int  # number of positions
    starts: np.ndarray  # step start + i has the positions starts[i]:starts[i + 1]
    rows: Rows
    batch: Rows
    states: Rows  # of the state after the step, in both directions
    previous: tuple[Rows, Rows]  # of the state before the step, forward and reverse
    passing: tuple[Rows, Rows]  # before and after the step, of states in one of two places in turn, (2, N, ...)


@dataclass(eq=False)  # frozen it would take 0.6 us more to make, and calls with lengths make a new one each
class Steps:
    """The valid steps (t, n) of a batch."""

    seq_len: int
    batch_size: int
    lengths: np.ndarray  # (N,)
    padded: bool  # whether any sequence is shorter than T
    _order: np.ndarray | None = None  # of the sequences, where it is not that of these lengths
    _bounds: dict[int, np.ndarray] = field(default_factory=dict, init=False)
    _long_lists: dict[int, tuple[np.ndarray, ...]] = field(default_factory=dict, init=False)

    @property
    def kept(self) -> bool:
        """Whether `steps_of` returns the same object for the next batch of this size."""
        return not self.padded and self.batch_size <= LISTED_ROWS

    @lazy
    def whole(self) -> Part:
        """All steps in one part."""
        return self._part(0, self.seq_len)

    def parts(self) -> Iterator[Part]:
        """All steps, in parts that begin at position 0."""
        size = self.seq_len if self.padded else LISTED_ROWS // max(self.batch_size, 1)
        for start in range(0, self.seq_len, max(size, 1)):
            yield self.part(start, min(start + max(size, 1), self.seq_len))

    def part(self, start: int, stop: int) -> Part:
        """Return the steps start..stop."""
        return self.whole if stop - start == self.seq_len else self._part(start, stop)

    def _part(self, start: int, stop: int) -> Part:
        size = self.batch_size
        if self.padded:
            starts, rows, batch, following, passing = self._listed
            starts = starts[start : stop + 1]
            previous = Rows(rows), Rows(following)
            count = int(starts[-1] - starts[0])
            return Part(start, stop, count, starts, Rows(rows), Rows(batch), Rows(rows, size), previous, passing)
        starts, rows, batch, passing = self._regular(stop - start)
        moved, odd, count = start * size, start % 2 * size, rows.size
        places = Rows(passing[odd : odd + count]), Rows(passing[odd + size : odd + size + count])
        previous = Rows(rows, moved), Rows(rows, moved + 2 * size)
        return Part(
            start, stop, count, starts, Rows(rows, moved), Rows(batch), Rows(rows, moved + size), previous, places
        )

    def _regular(self, steps: int) -> tuple[np.ndarray, ...]:
        """starts, rows, batch and passing (one step longer) of a part in which every sequence has all steps."""
        if steps * self.batch_size <= LISTED_ROWS:
            return _kept_lists(self.batch_size, steps)
        if steps not in self._long_lists:
            self._long_lists[steps] = _lists(self.batch_size, steps)
        return self._long_lists[steps]

    @lazy
    def _listed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[Rows, Rows]]:
        """starts, rows, batch, following (of the states that the reverse direction comes from) and passing."""
        order = self._longest_first
        t, position = np.nonzero(np.arange(self.seq_len)[:, None] < self.lengths[order])
        starts = np.searchsorted(t, np.arange(self.seq_len + 1))
        batch = order[position]
        following = np.where(t + 1 < self.lengths[batch], t + 2, self.seq_len + 1) * self.batch_size + batch
        odd = t % 2 * self.batch_size
        passing = Rows(odd + batch), Rows(self.batch_size - odd + batch)
        return starts, t * self.batch_size + batch, batch, following, passing

    @lazy
    def _longest_first(self) -> np.ndarray:
        """All sequences, the longest first."""
        return np.argsort(-self.lengths, kind="stable") if self._order is None else self._order

    def segment(self, start: int, stop: int) -> Steps:
        """The steps start:stop as a batch of their own, whose sequences keep their order: so do the sums over rows."""
        count = stop - start
        if not self.padded:
            return steps_of(count, self.batch_size)
        lengths = np.clip(self.lengths - start, 0, count)
        return Steps(count, self.batch_size, lengths, True, self._longest_first)

    @property
    def rows(self) -> np.ndarray:
        """(valid steps,) int64, rows of arrays (T, N, ...)."""
        return self.whole.rows.numbers

    @property
    def longest_first(self) -> np.ndarray:
        """The sequences that have steps, the longest first."""
        part = self.whole
        return part.batch.numbers[: part.starts[min(1, self.seq_len)]]

    def bounds(self, parts: int) -> np.ndarray:
        """Return (parts + 1,) int64 where to cut the rows of every step, so that each part has its share."""
        if parts not in self._bounds:
            done = np.concatenate([[0], np.cumsum(-np.sort(-self.lengths))])
            self._bounds[parts] = np.searchsorted(done, np.arange(parts + 1) * done[-1] / parts)
        return self._bounds[parts]

    @lazy
    def initial(self) -> tuple[Index, Index]:
        """Where the initial states stand in arrays (T + D, N, ...), forward and reverse."""
        return (0, _ALL), (self.seq_len + 1, _ALL)

    @lazy
    def final(self) -> tuple[Index, Index]:
        """Where the final states stand in arrays (T + D, N, ...), forward and reverse."""
        first = np.where(self.lengths > 0, 1, self.seq_len + 1)
        return self._index(self.lengths), self._index(first)

    @lazy
    def passing_ends(self) -> tuple[Index, Index]:
        """Where states that stand in one of two places in turn do so before the first and after the last step."""
        return (0, _ALL), self._index(self.lengths % 2)

    def _index(self, place: np.ndarray) -> Index:
        """The states of all sequences, each at its own place: without padding one place, which is quicker to index."""
        if self.padded or not place.size:
            return place, np.arange(self.batch_size)
        return int(place[0]), _ALL


def steps_of(seq_len: int, batch_size: int, lengths: np.ndarray | None = None) -> Steps:
    """Return the steps of a batch of these lengths, (N,) int64; None is all `seq_len`."""
    if lengths is None:
        return _full(seq_len, batch_size) if batch_size <= LISTED_ROWS else _full.__wrapped__(seq_len, batch_size)
    if not lengths.size or lengths[lengths.argmin()] == seq_len:  # sooner than min, see `checks.within`
        return steps_of(seq_len, batch_size)
    return Steps(seq_len, batch_size, lengths, True)


@lru_cache(maxsize=4)  # a training loop asks for the same again and again
def _full(seq_len: int, batch_size: int) -> Steps:
    return Steps(seq_len, batch_size, np.full(batch_size, seq_len), False)


def gradient_chunk(batch_size: int, itemsize: int) -> int:
    """Steps whose rows are summed up into the weights' gradient one after the other, before those of earlier steps.

    Chunks of so many are counted from the end of the sequence, on the way through it.
    """
    return max(1, _GRADIENT_BYTES // itemsize // max(batch_size, 1))


def segments_of(seq_len: int, batch_size: int, itemsize: int, checkpoint_steps: int) -> tuple[int, int]:
    """How many segments the steps are cut into by checkpoints, at least one, and the steps of each but the first.

    They are whole chunks of `gradient_chunk` steps, at least `checkpoint_steps` of them; the first takes what is left.
    """
    chunk = gradient_chunk(batch_size, itemsize)
    size = min(-(-checkpoint_steps // chunk) * chunk, max(seq_len, 1))
    return max(-(-seq_len // size), 1), size


def segments(seq_len: int, batch_size: int, itemsize: int, checkpoint_steps: int) -> list[tuple[int, int]]:
    """[start, stop) of the steps of each segment, in the order in which forward works on them."""
    count, size = segments_of(seq_len, batch_size, itemsize, checkpoint_steps)
    stops = range(seq_len - (count - 1) * size, seq_len + 1, size)
    return [(max(stop - size, 0), stop) for stop in stops]


def _lists(batch_size: int, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rows = row_numbers(steps * batch_size)
    passing = np.tile(np.arange(2 * batch_size), steps // 2 + 2)
    return np.arange(steps + 1) * batch_size, rows, passing[: rows.size] % max(batch_size, 1), passing


_kept_lists = lru_cache(maxsize=8)(_lists)


def row_numbers(count: int) -> np.ndarray:
    """Return the numbers 0..count - 1."""
    return _NUMBERS[:count] if count <= LISTED_ROWS else np.arange(count)


_NUMBERS = np.arange(LISTED_ROWS)
