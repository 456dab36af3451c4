"""The memory of a workspace: named arrays that are used again, and who may when."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from rnnkit.arrays import overlap
from rnnkit.errors import WorkspaceError, message
from rnnkit.forking import Call, at_work, entering

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


class Memory:
    """Named arrays that grow and are used again: what a workspace and its successors share.

    `calls` has a token of every call that reads or writes a workspace here, `borrowers` of the one that works in what
    is no workspace's. A call puts its token there inside a `try` and takes it out by `discard(token)` in the `finally`,
    in one step that Python does not interrupt: an exception from a signal handler, which may come between any two
    instructions, leaves none behind.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}
        self._arrays: dict[str, Any] = {}  # as they were last taken
        self._prepared: dict[str, tuple[Any, Any]] = {}  # by name: the key, and what was made for it
        self._asked: Any = None  # the last key of `comes_again`
        self.calls: set[Call] = set()
        self.borrowers: set[Call] = set()
        self.generation = 0
        self.segment: Any = None  # which one between checkpoints lies here whole
        self.rows: Any = None  # lists of the rows of the last batch with lengths, for the next of its size

    def __getstate__(self) -> dict[str, Any]:
        # What is prepared would be no view of a copy's arrays, and nobody ends calls that are at work in this.
        return self.__dict__ | {"_prepared": {}, "_asked": None, "rows": None, "calls": set(), "borrowers": set()}

    def holds(self, array: Any) -> bool:
        """Return whether the array may be a view of this memory."""
        if isinstance(array, np.ndarray) and array.flags.owndata:
            return False
        return any(overlap(array, one) for one in tuple(self._buffers.values()))  # another thread may add one

    def renew(self, call: Call) -> None:
        """Begin a call that writes the workspace anew: what earlier ones left is void."""
        with entering:
            if at_work(self.calls):
                expected = "not be in use by another call"
                raise WorkspaceError(message("forward", "workspace", expected, "one at work in its memory"))
            self.calls.add(call)
            self.generation += 1

    def read(self, function: str, call: Call, generation: int) -> None:
        """Begin a call that reads what the workspace of this generation holds; no `renew` comes between."""
        with entering:
            self.calls.add(call)
            self.check(function, generation)

    def check(self, function: str, generation: int) -> None:
        """Raise unless this generation is the last one."""
        if generation != self.generation:
            expected = "be the one that the latest forward on its memory returned"
            raise WorkspaceError(message(function, "workspace", expected, "an older one, whose memory is used again"))

    def borrow(self, call: Call) -> Memory:
        """Return a memory to work in: this one, or a new one while another call is at work in this."""
        with entering:
            if at_work(self.borrowers):
                return type(self)()
            self.borrowers.add(call)
        return self

    def take(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return an aligned array, not cleared, that is valid until the name is taken again."""
        array = self._arrays.get(name)
        if array is not None and array.shape == shape and array.dtype == dtype:
            return array
        self._prepared.clear()  # before the array is another one
        nbytes = prod(shape) * dtype.itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            self._arrays.pop(name, None)  # it is of the buffer that goes
            buffer = self._buffers[name] = self._new_buffer(nbytes)
        array = self._arrays[name] = buffer[:nbytes].view(dtype).reshape(shape)
        return array

    def comes_again(self, key: Any) -> bool:
        """Return whether the call before had this key, too: only then does it pay to keep what is made for it."""
        again, self._asked = self._asked == key, key
        return again

    def prepared(self, name: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return `make()`, kept under this name until another key comes, or until `take` returns a new array. What is
        kept may refer to arrays of this memory and its `rows`, and to nothing else that is large."""
        found = self._prepared.get(name)
        if found is None or found[0] != key:
            found = key, make()
            self._prepared[name] = found
        return found[1]

    def _new_buffer(self, nbytes: int) -> Any:
        """A new array of bytes, aligned."""
        buffer = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -buffer.ctypes.data % _ALIGNMENT
        return buffer[start : start + nbytes]
