"""The arrays that calls work in, used again from call to call, and what was laid out on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from rnnkit.common.arrays import overlap

KEPT_BYTES = 1 << 18
"""What small calls work in, at most, which is kept for the next one of their size."""

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


class Arena:
    """Named arrays that grow and are used again.

    Attributes
    ----------
    rows : StepRows or None
        Lists of the rows of the last batch with lengths, for the next of its size.
    segment : tuple or None
        Which segment between checkpoints lies here whole.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}
        self._arrays: dict[str, Any] = {}  # as they were last taken
        self._kept: dict[str, tuple[Any, Any]] = {}  # by name: the key, and what was made for it
        self._asked: Any = None  # the last key of `is_repeat`
        self.rows: Any = None
        self.segment: Any = None
        self.nbytes = 0  # of all arrays

    def __getstate__(self) -> dict[str, Any]:
        # What is kept would be no view of a copy's arrays.
        return self.__dict__ | {"_kept": {}, "_asked": None, "rows": None}

    def holds(self, array: Any) -> bool:
        """Return whether the array may be a view of these."""
        if isinstance(array, np.ndarray) and array.flags.owndata:
            return False
        return any(overlap(array, one) for one in tuple(self._buffers.values()))  # another thread may add one

    def take(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return an aligned array, not cleared, that is valid until the name is taken again."""
        array = self._arrays.get(name)
        if array is not None and array.shape == shape and array.dtype == dtype:
            return array
        self._kept.clear()  # before the array is another one
        nbytes = prod(shape) * dtype.itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            self._arrays.pop(name, None)  # it is of the buffer that goes
            self.nbytes += nbytes - (0 if buffer is None else buffer.nbytes)
            buffer = self._buffers[name] = self._new_buffer(nbytes)
        array = self._arrays[name] = buffer[:nbytes].view(dtype).reshape(shape)
        return array

    def side_by_side(self, blocks: Iterable[tuple[str, tuple[int, ...], np.dtype]]) -> Any:
        """Give arrays of these names, shapes and dtypes, which nobody has taken, memory side by side; returns all of
        it, as bytes."""
        nbytes = {name: -(-prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for name, shape, dtype in blocks}
        whole, start = self._new_buffer(sum(nbytes.values())), 0
        for name, count in nbytes.items():
            self._buffers[name], start = whole[start : start + count], start + count
        self.nbytes += start
        return whole

    def is_repeat(self, key: Any) -> bool:
        """Return whether the call before had this key, too: only then does it pay to keep what is made for it."""
        again, self._asked = self._asked == key, key
        return again

    def keep(self, name: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return `make()`, kept under this name until another key comes, or until `take` returns a new array. What is
        kept may refer to these arrays and `rows`, and to nothing else that is large."""
        found = self._kept.get(name)
        if found is None or found[0] != key:
            found = key, make()
            self._kept[name] = found
        return found[1]

    def _new_buffer(self, nbytes: int) -> Any:
        """A new array of bytes, aligned."""
        buffer = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -buffer.ctypes.data % _ALIGNMENT
        return buffer[start : start + nbytes]
