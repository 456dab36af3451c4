"""The time steps of a batch of sequences of any lengths, and their division into checkpoint segments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.common.arrays import library_of

LISTED_ROWS = 1 << 16
"""Number of row numbers that are computed once and shared by all calls."""

_GRADIENT_BYTES = 4096
"""Bytes of one column of a chunk of gradients: the depth that a product handles at once (`gemm.depth_block`)."""


class Resets(NamedTuple):
    """Resets of the state within sequences.

    marks[0, t, n] is 1 if the forward direction resets before step t. marks[1, t, n] is 1 if the reverse direction
    resets between steps t and t-1. Padding has no marks.
    """

    marks: np.ndarray  # (2, T + 1, N) uint8; in a segment, the last row belongs to the step after it
    from_hx: bool  # whether states are reset to the initial ones of the call
    learned: tuple[Any, Any] = (None, None)  # else to these, which belong to the network; None: zeros

    def part(self, start: int, stop: int) -> Resets:
        """Return the resets of steps start:stop."""
        return self._replace(marks=self.marks[:, start : stop + 1])

    def to(self, hx: Any, cx: Any) -> tuple[Any, Any]:
        """Return the hidden and the other states that states are reset to, None for zeros, in a call with hx and cx."""
        return (hx, cx) if self.from_hx else self.learned

    @property
    def is_to_zeros(self) -> bool:
        return not self.from_hx and self.learned[0] is None


@dataclass(eq=False)  # not frozen, which saves 0.6 us in each call with lengths
class Steps:
    """The valid steps (t, n) of a batch."""

    seq_len: int
    batch_size: int
    lengths: np.ndarray  # (N,)
    padded: bool  # whether any sequence is shorter than T
    resets: Resets | None = None

    @property
    def listed(self) -> bool:
        """Whether row numbers are listed for every step, because the batch is irregular."""
        return self.padded or self.resets is not None

    def start_from(self, learned: tuple[Any, Any], hx: Any, cx: Any) -> tuple[Any, Any]:
        """Return hx and cx, for None the network's own initial states, and let resets be to those; None, None: none."""
        if learned[0] is None:
            return hx, cx
        if self.resets is not None:
            self.resets = self.resets._replace(learned=learned)
        return learned[0] if hx is None else hx, learned[1] if cx is None else cx

    def after(self, states: Any) -> Any:
        """Return the states after each step, (T, N, ...): a view of an array of `states_shape`."""
        return states[1 : self.seq_len + 1]

    @property
    def longest_first(self) -> np.ndarray:
        """Indices of the sequences by descending length; equal lengths keep their order."""
        return np.argsort(-self.lengths, kind="stable")

    def positions(self) -> np.ndarray:
        """Return (T, N) int64, where step t of sequence n stands among the valid ones, as `rows.Part.positions` lists
        them: the steps one after the other, the longest sequence first. Beyond a sequence's length it means nothing."""
        running = (np.arange(self.seq_len)[:, np.newaxis] < self.lengths).sum(1)
        return (np.cumsum(running) - running)[:, np.newaxis] + np.argsort(self.longest_first)


def states_shape(seq_len: int, batch_size: int, num_directions: int, resets: bool = False) -> tuple[int, int]:
    """Return (T + D, N), the shape of arrays of the states before and after each step.

    Row 0 is the initial state, row T + 1 that of the reverse direction. With resets the shape is (T + 3, N), and row
    T + 2 is what states are reset to.
    """
    return seq_len + (3 if resets else num_directions), batch_size


def steps_of(
    seq_len: int,
    batch_size: int,
    lengths: np.ndarray | None = None,
    resets: np.ndarray | None = None,
    from_hx: bool = False,
) -> Steps:
    """Return the steps of a batch with these lengths, (N,) int64 (None: all `seq_len`), and these resets, (T, N) bool
    (None: no resets)."""
    if resets is not None:
        steps = steps_of(seq_len, batch_size, lengths)
        resets = _resets(resets, steps.lengths, from_hx)
        return steps if resets is None else Steps(seq_len, batch_size, steps.lengths, steps.padded, resets)
    if lengths is None:
        return _full(seq_len, batch_size) if batch_size <= LISTED_ROWS else _full.__wrapped__(seq_len, batch_size)
    if not lengths.size or lengths[lengths.argmin()] == seq_len:  # faster than min, see `checks.within`
        return steps_of(seq_len, batch_size)
    return Steps(seq_len, batch_size, lengths, True)


def with_zeros(state: Any, rows: np.ndarray) -> Any:
    """Return a copy of states (L, N, ...) with zeros in these rows, (N,) bool; None stays None."""
    return with_rows(state, None, rows)


def with_rows(state: Any, other: Any, rows: np.ndarray) -> Any:
    """Return states (L, N, ...) with these rows, (N,) bool, of others, of which None is zeros; None stays None."""
    if state is None:
        return None
    library: Any = library_of(state)
    return library.where(library.asarray(rows)[:, None], state.dtype.type(0) if other is None else other, state)


def _resets(resets: np.ndarray, lengths: np.ndarray, from_hx: bool) -> Resets | None:
    seq_len, batch_size = resets.shape
    marks = np.zeros((2, seq_len + 1, batch_size), np.uint8)
    np.logical_and(resets, np.arange(seq_len)[:, None] < lengths, out=marks[0, :-1], casting="unsafe")
    marks[1, 1:-1] = marks[0, 1:-1]
    return Resets(marks, from_hx) if marks.any() else None


@lru_cache(maxsize=4)  # a training loop uses the same sizes in each call
def _full(seq_len: int, batch_size: int) -> Steps:
    return Steps(seq_len, batch_size, np.full(batch_size, seq_len), False)


def gradient_chunk(batch_size: int, itemsize: int) -> int:
    """Return the number of steps of a chunk: their rows enter the weight gradient in one product.

    Chunks are counted from the end of the sequence, in processing order.
    """
    return max(1, _GRADIENT_BYTES // itemsize // max(batch_size, 1))


def segments_of(seq_len: int, batch_size: int, itemsize: int, checkpoint_steps: int) -> tuple[int, int]:
    """Return the number of checkpoint segments, at least 1, and the number of steps of each but the first.

    A segment is a multiple of `gradient_chunk` steps, at least `checkpoint_steps`; the first has the remainder.
    """
    chunk = gradient_chunk(batch_size, itemsize)
    size = min(-(-checkpoint_steps // chunk) * chunk, max(seq_len, 1))
    return max(-(-seq_len // size), 1), size


def segments(seq_len: int, batch_size: int, itemsize: int, checkpoint_steps: int) -> list[tuple[int, int]]:
    """Return [start, stop) of the steps of each segment, in the order in which forward runs them."""
    count, size = segments_of(seq_len, batch_size, itemsize, checkpoint_steps)
    stops = range(seq_len - (count - 1) * size, seq_len + 1, size)
    return [(max(stop - size, 0), stop) for stop in stops]


def row_numbers(count: int) -> np.ndarray:
    """Return the numbers 0..count - 1."""
    return _NUMBERS[:count] if count <= LISTED_ROWS else np.arange(count)


_NUMBERS = np.arange(LISTED_ROWS)
