"""Which library an array is of: NumPy's are on the host, CuPy's on a GPU."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

Array = Any
"""A numpy.ndarray or a cupy.ndarray."""


def library_of(value: Any) -> ModuleType | None:
    """Return numpy or cupy, or None for what is an array of neither. cupy is never imported for it.

    Of NumPy's subclasses a memmap alone is taken for an array: others, such as masked ones, mean more than their memory.
    """
    if type(value) is np.ndarray or type(value) is np.memmap:
        return np
    cupy = sys.modules.get("cupy")  # who has a CuPy array has imported it
    return cupy if cupy is not None and isinstance(value, cupy.ndarray) else None


def place_of(array: Any) -> str:
    """Return where an array is, for a message."""
    return "the host (NumPy)" if isinstance(array, np.ndarray) else f"GPU {array.device.id} (CuPy)"


def on_host(array: Any) -> np.ndarray:
    """Return the array itself, or a copy of it from a GPU."""
    return array if isinstance(array, np.ndarray) else array.get()
