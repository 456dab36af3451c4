"""Which library an array is of: NumPy's are on the host, CuPy's on a GPU."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rnnkit.errors import wrong_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"
"""A numpy.ndarray, or a cupy.ndarray, which type checkers know nothing of."""


def library_of(value: Any) -> ModuleType | None:
    """Return numpy or cupy, or None for what is an array of neither. cupy is never imported for it.

    Of NumPy's subclasses a memmap alone is taken for an array: others, masked ones say, mean more than their memory.
    """
    if type(value) is np.ndarray or type(value) is np.memmap:
        return np
    cupy = sys.modules.get("cupy")  # who has a CuPy array has imported it
    return cupy if cupy is not None and isinstance(value, cupy.ndarray) else None


def device_of(array: Any) -> str:
    """Return where an array is, for a message."""
    return "the host (NumPy)" if isinstance(array, np.ndarray) else f"GPU {array.device.id} (CuPy)"


def on_host(array: Any) -> np.ndarray:
    """Return the array itself, or a copy of it from a GPU."""
    return array if isinstance(array, np.ndarray) else array.get()


def beside(array: Any) -> Any:
    """Return the context in which CuPy makes arrays on this one's device, not on the current one; on the host none."""
    return nullcontext() if isinstance(array, np.ndarray) else array.device


def copy_of(array: Any) -> Any:
    """Return a copy on the same device."""
    with beside(array):
        return array.copy()


def overlap(one: Any, other: Any) -> bool:
    """Return whether two arrays of one library may share memory: whether their addresses overlap.

    cupy.may_share_memory is False for a view that went through another library, DLPack say.
    """
    library = library_of(one)
    if library is np:
        return np.may_share_memory(one, other)
    if not (one.size and other.size):
        return False
    (start, stop), (other_start, other_stop) = map(library.byte_bounds, (one, other))
    return start < other_stop and other_start < stop


def folded(array: Any) -> bool:
    """Return whether elements of an array may share memory with one another: a row that stands for all, say.

    True too for some that have none in common, whose rows lie between one another's elements; no slice makes these.
    """
    extent = array.dtype.itemsize
    for stride, count in sorted((abs(stride), count) for stride, count in zip(array.strides, array.shape, strict=True)):
        if count > 1 and stride < extent:
            return bool(array.size)
        extent += stride * (count - 1)
    return False


def no_array(function: str, name: str, expected: str, value: Any) -> TypeError:
    """Return the error that an argument is of no class that is taken for an array."""
    cure = ""
    if isinstance(value, np.ndarray):
        cure = f"a subclass is taken for no array but for what it means beside: give numpy.asarray({name})"
        if isinstance(value, np.ma.MaskedArray):
            cure = f"a mask is not looked at: give {name}.filled(0), and lengths for padding"
    return wrong_type(function, name, expected, value, cure)
