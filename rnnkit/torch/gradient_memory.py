"""Memory for the weights' gradient, which is used again when nobody has a view of it any more."""

from __future__ import annotations

from sys import getrefcount

import numpy as np
import torch

from rnnkit.torch.plain import Found

_ALIGNED_BYTES = range(1 << 17, 1 << 22)
"""Of the weights' gradient, with which it is in PyTorch's memory, which is aligned as NumPy's is not: to write 1 MiB
there takes 11 us in place of 17, and to add it 2 less (Zen 5). Of larger arrays NumPy has huge pages.
"""
_SPARE_BYTES = 1 << 23
"""Of the weights' gradient, at most, whose memory is used again."""


def _references_alone() -> int:
    """What `getrefcount` says of an array that nobody but a variable has: it depends on the version of Python."""
    array = np.empty(0)
    return getrefcount(array)


_ALONE = _references_alone()


def new_gradient(found: Found) -> np.ndarray:
    """Memory for the weights' gradient: that of the one before, if nobody has a view of it.

    New memory of 1 MiB takes 10 us more: the C library returns it to the system now and then.
    """
    w = found.weights
    try:
        dw = found.spare.pop()
        if getrefcount(dw) == _ALONE:
            return dw
    except IndexError:  # the first time, or another thread is at work with it
        pass
    aligned = w.nbytes in _ALIGNED_BYTES
    return torch.empty(w.shape, dtype=found.dtype).numpy() if aligned else np.empty(w.shape, w.dtype)


def give_back(found: Found, dw: np.ndarray | None) -> None:
    """Let the next call have the memory, if it is small and nobody has a view of it by then."""
    if dw is not None and dw.nbytes <= _SPARE_BYTES:
        found.spare.append(dw)
