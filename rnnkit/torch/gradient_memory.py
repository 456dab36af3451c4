"""Memory of dw, the gradient of the weights: reused if no view of it is left."""

from __future__ import annotations

from sys import getrefcount

import numpy as np
import torch

from rnnkit.torch.function import array_blocks
from rnnkit.torch.plain import FlatParameters

_ALIGNED_BYTES = range(1 << 17, 1 << 22)
"""Sizes of dw that PyTorch allocates, whose memory is aligned, unlike NumPy's: writing 1 MiB takes 11 us instead of 17,
adding it 2 us less (Zen 5). Larger arrays of NumPy use huge pages.
"""
_SPARE_BYTES = 1 << 23
"""Largest dw whose memory is reused."""


def _unshared_references() -> int:
    """Return `getrefcount` of an array with one reference, which varies with the version of Python."""
    array = np.empty(0)
    return getrefcount(array)


_UNSHARED = _unshared_references()


class Gradient:
    """Memory of dw, and its blocks: the gradients of the parameters, in the buffer's order."""

    __slots__ = "_blocks", "dw"

    def __init__(self, flat: FlatParameters, dw: np.ndarray) -> None:
        self.dw, self._blocks = dw, array_blocks(flat.desc, dw)

    def tensors(self) -> list[torch.Tensor]:
        """Return the blocks as tensors, which are `function.views`."""
        return [*map(torch.from_numpy, self._blocks)]

    def is_unshared(self) -> bool:
        """Whether nothing else refers to this memory."""
        if getrefcount(self.dw) != _UNSHARED + len(self._blocks):
            return False
        for block in self._blocks:
            if getrefcount(block) != _UNSHARED + 1:  # this variable
                return False
        return True


def new_gradient(flat: FlatParameters) -> Gradient:
    """Return memory for dw: the previous one, if no view of it is left.

    New memory of 1 MiB takes 10 us more, as malloc may have returned it to the OS.
    """
    w = flat.weights
    try:
        gradient = flat.spare.pop()
        if gradient.is_unshared():
            return gradient
    except IndexError:  # the first call, or another thread uses it
        pass
    aligned = w.nbytes in _ALIGNED_BYTES
    return Gradient(flat, torch.empty(w.shape, dtype=flat.dtype).numpy() if aligned else np.empty(w.shape, w.dtype))


def give_back(flat: FlatParameters, gradient: Gradient) -> None:
    """Offer the memory to the next call, which takes it if no view is left then; not if it is large."""
    if gradient.dw.nbytes <= _SPARE_BYTES:
        flat.spare.append(gradient)
