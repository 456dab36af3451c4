"""Tell NumPy arrays (on the host) from CuPy arrays (on a GPU)."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rnnkit.errors import wrong_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"
"""A numpy.ndarray or a cupy.ndarray; type checkers do not know the latter."""


def library_of(value: Any) -> ModuleType | None:
    """Return the module numpy or cupy for its arrays, None for anything else. Never imports cupy.

    memmap is the only subclass of numpy.ndarray that counts: others, for example masked arrays, mean more than their
    data.
    """
    if type(value) is np.ndarray or type(value) is np.memmap:
        return np
    cupy = sys.modules.get("cupy")  # if there is a CuPy array, cupy is imported
    return cupy if cupy is not None and isinstance(value, cupy.ndarray) else None


def device_of(array: Any) -> str:
    """Return the name of an array's device, for a message."""
    return "the host (NumPy)" if isinstance(array, np.ndarray) else f"GPU {array.device.id} (CuPy)"


def on_host(array: Any) -> np.ndarray:
    """Return the array itself if it is on the host, else a copy on the host."""
    return array if isinstance(array, np.ndarray) else array.get()


def device_context(array: Any) -> Any:
    """Return a context in which CuPy allocates on the GPU of this array; on the host it does nothing."""
    return nullcontext() if isinstance(array, np.ndarray) else array.device


def copy_of(array: Any) -> Any:
    """Return a copy on the same device."""
    with device_context(array):
        return array.copy()


def sum_of_steps(array: np.ndarray) -> np.ndarray:
    """Return the sum over axis 0, the first step first, whatever the shape of a step.

    NumPy's sum adds rows one after the other, but the numbers of one column, one number a step, pairwise: the result
    for a sequence would depend on whether there are others.
    """
    if isinstance(array, np.ndarray) and prod(array.shape[1:]) == 1:
        return np.repeat(array, 2, axis=-1).sum(axis=0)[..., :1]
    return array.sum(axis=0)


def overlap(one: Any, other: Any) -> bool:
    """Return whether two arrays of one library may share memory: whether their address ranges overlap.

    Not cupy.may_share_memory: it is False for a view that went through another library, for example by DLPack.
    """
    library = library_of(one)
    if library is np:
        return np.may_share_memory(one, other)
    if not (one.size and other.size):
        return False
    (start, stop), (other_start, other_stop) = map(library.byte_bounds, (one, other))
    return start < other_stop and other_start < stop


def overlaps_itself(array: Any) -> bool:
    """Return whether elements of an array may share memory with one another, as in a broadcast view.

    May also be True for interleaved strides without a shared element; slicing cannot produce these.
    """
    extent = array.dtype.itemsize
    for stride, count in sorted((abs(stride), count) for stride, count in zip(array.strides, array.shape, strict=True)):
        if count > 1 and stride < extent:
            return bool(array.size)
        extent += stride * (count - 1)
    return False


def not_an_array(function: str, name: str, expected: str, value: Any) -> TypeError:
    """Return the error for an argument that is not a supported array."""
    cure = ""
    if isinstance(value, np.ndarray):
        cure = f"subclasses of numpy.ndarray are not supported: pass numpy.asarray({name})"
        if isinstance(value, np.ma.MaskedArray):
            cure = f"its mask would be ignored: pass {name}.filled(0), and use lengths for padding"
    return wrong_type(function, name, expected, value, cure)
