"""Locks that a fork must not leave locked for ever in the child.

A fork waits until other threads have imported the engine and compiled, or loaded, their kernels. The locks are
reentrant, because a signal handler may run between any two instructions and call the engine, too; an import is not
interrupted.

Each running call registers a token in the memory that it uses. After a fork, the child tells the tokens of its parent's
threads from its own.
"""

from __future__ import annotations

# Numba takes logging's lock while it compiles: our hook must run before logging's, and the last registered runs first.
import logging  # noqa: F401
import os
import sys
import threading
from threading import get_ident

from rnnkit_kernels.machine.forks import forget
from rnnkit_kernels.machine.imports import imported as imported  # for `network`, which sees nothing of the kernels
from rnnkit_kernels.machine.imports import importing

entering = threading.RLock()
"""Held while a call claims the memory of any workspace or plan."""

_held = []
_forkers: list[int] = []  # for each ancestor process, the thread that forked; oldest first

Call = tuple[int, int, object]
"""The token of a running call: the number of forks before it, its thread, and a unique object."""


def new_call() -> Call:
    """Return a token for a call of this thread."""
    return len(_forkers), get_ident(), object()


def at_work(calls: set[Call], own: Call | None = None) -> bool:
    """Return whether any of these calls, other than `own`, is still running.

    Only the thread that forked survives in the child. So this removes the tokens of the parent's other threads, whose
    `finally` never runs.
    """
    if not calls:
        return False
    calls.difference_update([call for call in tuple(calls) if any(forker != call[1] for forker in _forkers[call[0] :])])
    return len(calls) > (own in calls)


def _before() -> None:
    importing.acquire()
    numba = sys.modules.get("numba.core.compiler_lock")  # the engine is not importing it now: we hold `importing`
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
