"""Arrays that successive calls reuse, and the prepared kernel calls that refer to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from rnnkit.common.arrays import overlap

KEPT_BYTES = 1 << 18
"""Largest memory of a small call that is kept for the next call of its size."""

_CACHED = 3  # values of a name that are cached: those of a training loop, its evaluation and one more
_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


def side_by_side(blocks: Iterable[tuple[str, tuple[int, ...], np.dtype]]) -> tuple[dict[str, slice], int]:
    """Return the places, in bytes, of arrays of these names, shapes and dtypes in one buffer, and its size."""
    places, start = {}, 0
    for name, shape, dtype in blocks:
        stop = start + -(-prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        places[name], start = slice(start, stop), stop
    return places, start


class Arena:
    """Named arrays that grow and are reused.

    Attributes
    ----------
    rows : dict
        Row lists of the last batches, by the kind of batch (`rows.rows_of`), reused by the next ones.
    segment : tuple or None
        Key of the checkpoint segment whose forward results are complete in this arena.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}
        self._arrays: dict[str, Any] = {}  # the last array that each name was taken as
        self._cache: dict[str, list[tuple[Any, Any]]] = {}  # name -> the last (key, value)
        self._last_key: Any = None  # of `is_repeat`
        self.rows: dict[Any, Any] = {}
        self.segment: Any = None
        self.nbytes = 0  # of all arrays

    def __getstate__(self) -> dict[str, Any]:
        # Cached values refer to these arrays, not to the copy's.
        return self.__dict__ | {"_cache": {}, "_last_key": None, "rows": {}}

    def holds(self, array: Any) -> bool:
        """Return whether the array may share memory with this arena."""
        if isinstance(array, np.ndarray) and array.flags.owndata:
            return False
        return any(overlap(array, buffer) for buffer in tuple(self._buffers.values()))  # another thread may add one

    def take(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return an aligned array, not cleared, that is valid until the name is taken again."""
        array = self._arrays.get(name)
        if array is not None and array.shape == shape and array.dtype == dtype:
            return array
        self._cache.clear()  # cached values refer to the old array
        nbytes = prod(shape) * dtype.itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            self._arrays.pop(name, None)  # it views the buffer that is replaced
            self.nbytes += nbytes - (0 if buffer is None else buffer.nbytes)
            buffer = self._buffers[name] = self._new_buffer(nbytes)
        array = self._arrays[name] = buffer[:nbytes].view(dtype).reshape(shape)
        return array

    def side_by_side(self, blocks: Iterable[tuple[str, tuple[int, ...], np.dtype]]) -> Any:
        """Allocate arrays of these names, shapes and dtypes contiguously, before their first `take`. Returns the whole
        buffer, as bytes."""
        places, nbytes = side_by_side(blocks)
        whole = self._new_buffer(nbytes)
        self._buffers |= {name: whole[place] for name, place in places.items()}
        self.nbytes += nbytes
        return whole

    def is_repeat(self, key: Any) -> bool:
        """Return whether the previous call had the same key. Only then does caching pay."""
        is_repeat, self._last_key = self._last_key == key, key
        return is_repeat

    def cached(self, name: str, key: Any, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return `make(*arguments)`, cached under this name and key until `take` returns a new array. The value may
        refer to these arrays and to `rows`, but must not keep other large objects alive."""
        for known, value in self._cache.get(name, ()):
            if known == key:
                return value
        value = make(*arguments)  # may clear the cache
        entries = self._cache.setdefault(name, [])
        entries.insert(0, (key, value))
        del entries[_CACHED:]
        return value

    def _new_buffer(self, nbytes: int) -> Any:
        """Allocate an aligned array of bytes."""
        buffer = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -buffer.ctypes.data % _ALIGNMENT
        return buffer[start : start + nbytes]
