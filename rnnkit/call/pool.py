"""What finished calls leave for later ones: memory, with the kernel calls that are prepared in it.

New memory costs more than it seems: the system clears each page when it is first written, which takes as long as half
of the work of a small layer.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from rnnkit.errors import message, wrong_type

__all__ = ["IDLE", "Lease", "Pool", "Shelf", "leased", "set_idle_memory"]

_DEFAULT_BYTES = 1 << 30
_MAX_SHELVES = 256


class Pool:
    """Idle objects that have `nbytes`, on shelves of interchangeable ones, with at most `limit` bytes together.

    Any thread, a signal handler and a destructor may use it at any moment: each step is one operation of a deque or a
    dict. So `nbytes` can be off by what several threads do at once; `shrink` counts anew.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes, self.uses = limit, 0, 0
        self._shelves: dict[Any, Shelf] = {}

    def shelf(self, *key: Any) -> Shelf:
        """Return the shelf of this key."""
        found = self._shelves.get(key)
        if found is None:
            if len(self._shelves) >= _MAX_SHELVES:
                self._drop_shelf()
            found = self._shelves.setdefault(key, Shelf(self, key))
        return found

    def shrink(self) -> None:
        """Drop idle objects, the longest unused first, until the rest is within the limit."""
        shelves = sorted(self._shelves.copy().values(), key=lambda shelf: shelf.used)
        total = sum(nbytes for shelf in shelves for _, nbytes in tuple(shelf.idle))
        for shelf in shelves:
            while total > self.limit and shelf.idle:
                try:
                    total -= shelf.idle.popleft()[1]
                except IndexError:  # another thread has taken it
                    break
        self.nbytes = total

    def clear(self) -> None:
        """Drop all idle objects."""
        for shelf in self._shelves.copy().values():
            shelf.idle.clear()
        self.nbytes = 0

    def _drop_shelf(self) -> None:
        oldest = min(self._shelves.copy().values(), key=lambda shelf: shelf.used)
        self._shelves.pop(oldest.key, None)
        oldest.is_dropped = True
        oldest.idle.clear()
        self.shrink()


class Shelf:
    """Idle objects of one kind, any of which serves, each with its bytes."""

    __slots__ = "_pool", "idle", "is_dropped", "key", "used"

    def __init__(self, pool: Pool, key: Any) -> None:
        self._pool, self.key, self.idle = pool, key, deque[tuple[Any, int]]()
        self.used, self.is_dropped = pool.uses, False  # a dropped shelf stands for the new one of its key

    def take(self) -> Any:
        """Return the object that was idle for the shortest time, or None."""
        if self.is_dropped:
            return self._pool.shelf(*self.key).take()
        try:
            found, nbytes = self.idle.pop()
        except IndexError:  # none, or another thread has taken it
            return None
        self._pool.nbytes -= nbytes
        return found

    def give_back(self, one: Any) -> None:
        """Make an object idle."""
        if self.is_dropped:
            self._pool.shelf(*self.key).give_back(one)
            return
        pool, nbytes = self._pool, one.nbytes
        self.idle.append((one, nbytes))
        pool.uses = self.used = pool.uses + 1
        pool.nbytes += nbytes
        if pool.nbytes > pool.limit:
            pool.shrink()


class Lease:
    """A claim on an object: it becomes idle when nobody refers to its lease any more, unless it has been overwritten
    since, which changes its `generation`."""

    __slots__ = "generation", "held", "shelf"

    def __init__(self, held: Any, shelf: Shelf) -> None:
        self.held, self.shelf, self.generation = held, shelf, held.generation

    def __del__(self) -> None:
        if self.held.generation == self.generation:
            self.shelf.give_back(self.held)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a copy has memory of its own


class _Leased:
    """The memory of an array, read-only, with a lease."""

    __slots__ = "__array_interface__", "lease"


def leased(array: np.ndarray, lease: Lease) -> np.ndarray:
    """Return a read-only view of an array that holds a lease of its memory."""
    own, interface = _Leased(), array.__array_interface__
    interface["data"] = interface["data"][0], True
    own.__array_interface__, own.lease = interface, lease
    return np.asarray(own)


IDLE = Pool(_DEFAULT_BYTES)
"""The pool of all calls of this process."""


def set_idle_memory(nbytes: int) -> int:
    """Set how much memory of finished calls is kept for later ones.

    A forward on NumPy arrays or through a PyTorch module takes the memory that a deleted workspace has left, instead of
    new memory, which the system has to clear.

    Parameters
    ----------
    nbytes : int
        Most bytes of idle memory in this process, at least 0. The default is 2**30, 1 GiB. What is above the limit now
        is freed, the longest unused first; 0 frees all and keeps nothing.

    Returns
    -------
    int
        The limit before.

    Raises
    ------
    TypeError, ValueError
        `nbytes` is not an int of at least 0.

    Examples
    --------
    >>> before = set_idle_memory(0)  # keep nothing
    >>> before == 2**30, set_idle_memory(before)
    (True, 0)
    """
    if isinstance(nbytes, bool) or not isinstance(nbytes, (int, np.integer)):
        raise wrong_type("set_idle_memory", "nbytes", "an int", nbytes)
    if nbytes < 0:
        raise ValueError(message("set_idle_memory", "nbytes", "be at least 0", nbytes))
    before, IDLE.limit = IDLE.limit, int(nbytes)
    IDLE.shrink()
    return before
