"""Arrivals at a server of many streams: each event steps a random subset of them, from where their last step left them.

rnnkit has `plan.stream` for it. In the other engines, and in rnnkit "by-hand", the states of the subset are gathered
from arrays of all streams, and what the step makes of them is written back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rnnkit
from perf.cases import Problem

States = tuple[Any, Any]  # of the streams, hx and cx; cx is None but for the LSTM


def streams(given: Problem) -> Callable[[], Any]:
    """Return the run through `plan.stream`; like those by hand it begins with the initial states each time."""
    stream = rnnkit.prepare(given.desc, given.w).stream(given.hx.shape[1])
    initial = {name: array for name, array in (("hx", given.hx), ("cx", given.cx)) if array is not None}
    y = _outputs(given)

    def run() -> Any:
        stream.restore(initial)
        for t, rows in enumerate(given.rows):
            stream.step(given.x[t], rows=rows, out=y[t])
        state = stream.state
        return y, state["hx"], state.get("cx")

    return run


def by_hand(given: Problem, step: Callable[..., Any]) -> Callable[[], Any]:
    """Return the run through an engine's `step` of x (n, I), hx and cx, which returns y (n, P), hy and cy."""
    y = _outputs(given)

    def run() -> Any:
        hx, cx = given.hx.copy(), None if given.cx is None else given.cx.copy()
        for t, rows in enumerate(given.rows):
            y[t], hy, cy = step(given.x[t], hx[:, rows], None if cx is None else cx[:, rows])
            hx[:, rows] = hy
            if cx is not None:
                cx[:, rows] = cy
        return y, hx, cx

    return run


def _outputs(given: Problem) -> np.ndarray:
    return np.empty((*given.x.shape[:2], given.desc.output_size), given.x.dtype)
