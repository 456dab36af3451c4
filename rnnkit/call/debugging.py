"""Debug mode: forward stores digests of w and x, and backward compares them."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from rnnkit.call.workspace import Workspace
from rnnkit.common.arrays import on_host
from rnnkit.errors import WorkspaceError, wrong_type

_on = os.environ.get("RNNKIT_DEBUG", "") not in ("", "0")


def is_on() -> bool:
    """Return whether debug mode is on."""
    return _on


def set_debug(on: bool) -> None:
    """Make backward raise if w or x changed since forward: the gradients would be wrong.

    The mode is off by default. Set the environment variable ``RNNKIT_DEBUG`` to anything but 0 to start with it on.
    While it is on, each forward and each backward reads w and x once more, for a digest; arrays on a GPU are copied to
    the host.

    Parameters
    ----------
    on : bool
        For all calls of this process from now on. A forward that ran while it was off is not checked.

    Raises
    ------
    TypeError
        `on` is not a bool.

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
    rnnkit.errors.WorkspaceError: backward: w has changed since forward
    >>> set_debug(False)
    """
    global _on
    if not isinstance(on, bool):
        raise wrong_type("set_debug", "on", "a bool", on)
    _on = on


def note(workspace: Workspace, w: Any) -> None:
    """Store digests in the workspace of a forward, if debug mode is on."""
    if _on:
        workspace.digests = {"w": _digest(w), "x": _digest(workspace.x)}


def compare(function: str, workspace: Workspace, w: Any) -> None:
    """Raise WorkspaceError if w or x changed since forward. Does nothing if debug mode is off, or was off then."""
    if _on:
        for name, array in (("w", w), ("x", workspace.x)):
            if workspace.digests.get(name, digest := _digest(array)) != digest:
                raise WorkspaceError(f"{function}: {name} has changed since forward")


def _digest(array: Any) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(on_host(array)), digest_size=16).digest()
