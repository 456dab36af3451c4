"""The debug switch: forward notes digests of what backward relies on, and backward compares."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from rnnkit.call.workspace import Workspace
from rnnkit.common.arrays import on_host
from rnnkit.errors import WorkspaceError, message, wrong_type

_on = os.environ.get("RNNKIT_DEBUG", "") not in ("", "0")


def is_on() -> bool:
    """Whether forward notes, and backward compares."""
    return _on


def set_debug(on: bool) -> None:
    """Let backward notice weights or inputs that have changed since forward: a mistake that gives wrong gradients.

    It is off at first, unless the environment variable ``RNNKIT_DEBUG`` is set, to anything but 0. While it is on, each
    forward and each backward reads w and x once more, for a digest; from a GPU they are copied to the host.

    Parameters
    ----------
    on : bool
        For all calls of this process from now on. A forward that ran without it is not looked at.

    Raises
    ------
    TypeError
        `on` is no bool.

    Examples
    --------
    >>> import numpy as np
    >>> import rnnkit
    >>> net, x = rnnkit.GRU(3, 5, seed=0), np.ones((7, 4, 3), np.float32)
    >>> set_debug(True)
    >>> result = net.forward(x)
    >>> net.weights *= 0.5
    >>> net.backward(result.workspace, dy=result.y)
    Traceback (most recent call last):
        ...
    rnnkit.errors.WorkspaceError: backward: w must be as forward had it, got one that has changed since
    >>> set_debug(False)
    """
    global _on
    if not isinstance(on, bool):
        raise wrong_type("set_debug", "on", "a bool", on)
    _on = on


def note(workspace: Workspace, w: Any) -> None:
    """Keep digests in the workspace of a forward, where the switch is on."""
    if _on:
        workspace.digests = {"w": _digest(w), "x": _digest(workspace.x)}


def compare(function: str, workspace: Workspace, w: Any) -> None:
    """Raise WorkspaceError where what forward had noted has changed; unless the switch is off now, or was off then."""
    if _on:
        for name, array in (("w", w), ("x", workspace.x)):
            if workspace.digests.get(name, own := _digest(array)) != own:
                expected, got = "be as forward had it", "one that has changed since"
                raise WorkspaceError(message(function, name, expected, got))


def _digest(array: Any) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(on_host(array)), digest_size=16).digest()
