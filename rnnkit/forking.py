"""What no thread may be in the middle of when the process forks: the child would find its locks taken for ever.

A fork waits until other threads have imported the engine and compiled, or loaded, their kernels. The locks may be taken
twice by one thread: a signal's handler, which runs between any two instructions, may call the engine too.
"""

from __future__ import annotations

# Numba takes logging's lock while it compiles: its hook must come after ours, and the last registered runs first.
import logging  # noqa: F401
import os
import sys
import threading
from threading import get_ident

importing = threading.RLock()
"""Held while the engine, and with it Numba or CuPy, is imported."""

entering = threading.RLock()
"""Held for the moment in which a call takes memory, of whichever workspace or plan."""

_held = []
_forks = 0  # of this process, its parent, and so on

Call = tuple[int, int, object]
"""The token of a call at work: what it was made in, `_forks` and the thread, and itself."""


def new_call() -> Call:
    """Return a token of a call of this thread."""
    return _forks, get_ident(), object()


def at_work(calls: set[Call], own: Call | None = None) -> bool:
    """Return whether one of these calls is at work, beside one's own.

    In a forked child those of its parent's other threads are not, and go out: nobody else will end them.
    """
    if not calls:
        return False
    thread = get_ident()
    calls.difference_update([call for call in tuple(calls) if call[0] != _forks and call[1] != thread])
    return len(calls) > (own in calls)


def _before() -> None:
    importing.acquire()
    numba = sys.modules.get("numba.core.compiler_lock")  # nobody is importing it now on the engine's behalf
    compiling = getattr(numba, "global_compiler_lock", None)
    if compiling is not None:
        compiling.acquire()
        _held.append(compiling)
    entering.acquire()


def _after() -> None:
    entering.release()
    while _held:
        _held.pop().release()
    importing.release()


def _after_in_child() -> None:
    global _forks
    _forks += 1
    _after()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
