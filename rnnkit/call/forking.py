"""What no thread may be in the middle of when the process forks: the child would find its locks taken for ever.

A fork waits until other threads have imported the engine and compiled, or loaded, their kernels. The locks may be taken
twice by one thread: a signal's handler, which runs between any two instructions, may call the engine too.

A call at work in some memory has a token there; a child tells those of its parent's threads from its own.
"""

from __future__ import annotations

# Numba takes logging's lock while it compiles: its hook must come after ours, and the last registered runs first.
import logging  # noqa: F401
import os
import sys
import threading
from threading import get_ident

from rnnkit.kernels.machine.forks import forget

importing = threading.RLock()
"""Held while the engine, and with it Numba or CuPy, is imported."""

entering = threading.RLock()
"""Held for the moment in which a call takes memory, of whichever workspace or plan."""

_held = []
_forkers: list[int] = []  # the threads that forked, of this process' ancestors, the first one first

Call = tuple[int, int, object]
"""The token of a call at work: how many forks were before it, its thread, and itself."""


def new_call() -> Call:
    """Return a token of a call of this thread."""
    return len(_forkers), get_ident(), object()


def at_work(calls: set[Call], own: Call | None = None) -> bool:
    """Return whether one of these calls is at work, beside one's own.

    In a forked child those of its parent's threads are not, but for the thread that forked, and go out: nobody else
    will end them.
    """
    if not calls:
        return False
    calls.difference_update([one for one in tuple(calls) if any(forker != one[1] for forker in _forkers[one[0] :])])
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
    _forkers.append(get_ident())
    forget()
    _after()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
