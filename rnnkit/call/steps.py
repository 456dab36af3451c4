"""Which steps a batch has: sequences of any lengths; and how they are cut into segments between checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

LISTED_ROWS = 1 << 16
"""Row numbers that are kept between calls."""

_GRADIENT_BYTES = 4096
"""Bytes of a column of a chunk of gradients: as many rows as a product works through at once (`gemm.depth_block`)."""


class Resets(NamedTuple):
    """Where states start anew inside of sequences.

    A mark is 1 where the state before step t does on the way forward, marks[0, t, n], and on the way back between steps
    t and t-1, marks[1, t, n]. In padding there are none.
    """

    marks: np.ndarray  # (2, T + 1, N) uint8; of a segment the last ones are those of the step behind it
    from_hx: bool  # from the initial states; else from zeros

    def part(self, start: int, stop: int) -> Resets:
        """Those of the steps start:stop."""
        return self._replace(marks=self.marks[:, start : stop + 1])


@dataclass(eq=False)  # frozen it would take 0.6 us more to make, and calls with lengths make a new one each
class Steps:
    """The valid steps (t, n) of a batch."""

    seq_len: int
    batch_size: int
    lengths: np.ndarray  # (N,)
    padded: bool  # whether any sequence is shorter than T
    resets: Resets | None = None

    @property
    def listed(self) -> bool:
        """Whether the rows of each step are listed, since they follow no rule."""
        return self.padded or self.resets is not None

    def after(self, states: Any) -> Any:
        """The states after each step, (T, N, ...), in an array of `states_shape`: a view."""
        return states[1 : self.seq_len + 1]

    @property
    def longest_first(self) -> np.ndarray:
        """The sequences, the longest first, and of one length in their order."""
        return np.argsort(-self.lengths, kind="stable")


def states_shape(seq_len: int, batch_size: int, num_directions: int, resets: bool = False) -> tuple[int, int]:
    """(T + D, N) of arrays of the states before and after each step: the initial ones stand in front, those of the
    reverse direction behind. With resets (T + 3, N): at T + 2 stands what states start anew from."""
    return seq_len + (3 if resets else num_directions), batch_size


def steps_of(
    seq_len: int, batch_size: int, lengths: np.ndarray | None = None, resets: np.ndarray | None = None,
    from_hx: bool = False,
) -> Steps:
    """Return the steps of a batch of these lengths, (N,) int64, with these resets, (T, N) bool; None is all `seq_len`,
    and nowhere."""
    if resets is not None:
        steps = steps_of(seq_len, batch_size, lengths)
        resets = _resets(resets, steps.lengths, from_hx)
        return steps if resets is None else Steps(seq_len, batch_size, steps.lengths, steps.padded, resets)
    if lengths is None:
        return _full(seq_len, batch_size) if batch_size <= LISTED_ROWS else _full.__wrapped__(seq_len, batch_size)
    if not lengths.size or lengths[lengths.argmin()] == seq_len:  # sooner than min, see `checks.within`
        return steps_of(seq_len, batch_size)
    return Steps(seq_len, batch_size, lengths, True)


def with_zeros(state: Any, rows: np.ndarray) -> Any:
    """A copy of states (L, N, ...) with zeros in these rows, (N,) bool; None of None."""
    return None if state is None else np.where(rows[:, None], state.dtype.type(0), state)


def _resets(resets: np.ndarray, lengths: np.ndarray, from_hx: bool) -> Resets | None:
    seq_len, batch_size = resets.shape
    marks = np.zeros((2, seq_len + 1, batch_size), np.uint8)
    np.logical_and(resets, np.arange(seq_len)[:, None] < lengths, out=marks[0, :-1], casting="unsafe")
    marks[1, 1:-1] = marks[0, 1:-1]
    return Resets(marks, from_hx) if marks.any() else None


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


def row_numbers(count: int) -> np.ndarray:
    """Return the numbers 0..count - 1."""
    return _NUMBERS[:count] if count <= LISTED_ROWS else np.arange(count)


_NUMBERS = np.arange(LISTED_ROWS)
