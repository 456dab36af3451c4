"""Which steps of a batch run, count and begin anew, as arrays on the GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy
import numpy as np

from rnnkit.call.options import CallOptions
from rnnkit.cuda.source import COUNTS, RUNS


class Marks(NamedTuple):
    """Arrays (T, N); None: all steps run and count, or none begins anew."""

    flags: Any  # uint8, bits RUNS and COUNTS
    resets: tuple[Any, Any]  # uint8, by direction: whether the state is reset before this step
    counts: Any  # int32: the number of this step among those of its sequence that run; None: t
    is_shown: Any  # bool: whether a step is within its sequence; None: all are
    is_empty: Any  # bool (N, 1): whether no step of a sequence runs; None: some step of each does


def marks_of(options: CallOptions) -> Marks:
    """Return the marks of a call, on CuPy's current device."""
    steps, mask, seq_len = options.steps, options.mask, options.seq_len
    flags = counts = within = None
    t = np.arange(seq_len)[:, None]
    if mask is not None:
        within = np.ones(mask.listed.shape, bool) if not mask.lengths.size else t < mask.lengths
        flags = RUNS * mask.listed + COUNTS * within
        counts = cupy.asarray((mask.numbers - 1).astype(np.int32))
    elif steps.padded:
        within = t < steps.lengths
        flags = (RUNS + COUNTS) * within
    resets: list[Any] = [None, None]
    if steps.resets is not None:
        marks = steps.resets.marks
        for direction, own in enumerate((marks[0, : steps.seq_len], marks[1, 1 : steps.seq_len + 1])):
            own = own if mask is None else mask.spread(own)
            resets[direction] = cupy.asarray(np.ascontiguousarray(own, np.uint8))
    flags, empty = None if flags is None else cupy.asarray(flags.astype(np.uint8)), steps.lengths == 0
    return Marks(
        flags,
        (resets[0], resets[1]),
        counts,
        None if within is None else cupy.asarray(within),
        cupy.asarray(empty[:, None]) if empty.any() else None,
    )
