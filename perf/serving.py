"""A server of many streams: each event steps a random subset of them, from their last states.

rnnkit has `plan.stream` for it. With other engines, and with rnnkit "by-hand", the states of the subset are gathered
from arrays of all streams, and written back after the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rnnkit
from perf.cases import Problem

Server = tuple[Callable[[], np.ndarray], Callable[[], tuple[Any, Any]]]
"""What runs all arrivals, from the initial states each time, and returns y (T, n, P); and the states after it, hx and
cx (None but for the LSTM)."""


def streams(given: Problem) -> Server:
    """Return the server that has `plan.stream`."""
    stream = rnnkit.prepare(given.desc, given.w).stream(given.hx.shape[1])
    initial = {name: array for name, array in (("hx", given.hx), ("cx", given.cx)) if array is not None}
    y = _outputs(given)

    def run() -> np.ndarray:
        stream.restore(initial)
        for t, rows in enumerate(given.rows):
            stream.step(given.x[t], rows=rows, out=y[t])
        return y

    return run, lambda: (stream.state["hx"], stream.state.get("cx"))


def by_hand(given: Problem, step: Callable[..., Any]) -> Server:
    """Return the server that has an engine's `step` of x (n, I), hx and cx, which returns y (n, P), hy and cy."""
    y, hx, cx = _outputs(given), given.hx.copy(), None if given.cx is None else given.cx.copy()

    def run() -> np.ndarray:
        hx[...] = given.hx
        if cx is not None:
            cx[...] = given.cx
        for t, rows in enumerate(given.rows):
            y[t], hy, cy = step(given.x[t], hx[:, rows], None if cx is None else cx[:, rows])
            hx[:, rows] = hy
            if cx is not None:
                cx[:, rows] = cy
        return y

    return run, lambda: (hx, cx)


def _outputs(given: Problem) -> np.ndarray:
    return np.empty((*given.x.shape[:2], given.desc.output_size), given.x.dtype)
