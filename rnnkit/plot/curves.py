"""Training curves, from the logs of training runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import cycle
from typing import Any

from rnnkit.common.training_log import read_log
from rnnkit.errors import message, wrong_type
from rnnkit.plot.figures import GRID, new_figure

_AXES = {  # name -> column, divisor, label
    "bytes": ("bytes", 1e6, "training text read (MB)"),
    "steps": ("step", 1, "steps"),
    "minutes": ("seconds", 60, "time (min)"),
}
_KINDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("train_bits", "training", {"alpha": 0.5, "linewidth": 1}),
    ("validation_bits", "validation", {"linestyle": "--", "marker": "o", "markersize": 4}),
)
_SIZE = 8, 5  # inches


def training(logs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], x: str = "bytes") -> Any:
    """Draw the training and validation curves of one or several runs of `rnnkit train`.

    Parameters
    ----------
    logs : path, or iterable of paths
        Files that `rnnkit train --log` has written, also while the run goes on.
    x : {"bytes", "steps", "minutes"}
        The horizontal axis: bytes of training text read, updates, or training time.

    Returns
    -------
    matplotlib.figure.Figure
        Bits per byte: the mean over the steps since the last row as a line, the validation text as dots. Each run has
        a colour, and the name of its file.

    Raises
    ------
    ImportError
        Matplotlib is not installed.
    OSError
        A file cannot be read.
    TypeError, ValueError
        `logs` is empty or no path, `x` is unknown, or a file is not a log or has no rows.
    """
    if x not in _AXES:
        raise ValueError(message("training", "x", f"be {' or '.join(_AXES)}", repr(x)))
    paths = [logs] if isinstance(logs, (str, os.PathLike)) else list(logs)
    for path in paths:
        if not isinstance(path, (str, os.PathLike)):
            raise wrong_type("training", "logs", "a path, or paths", path)
    if not paths:
        raise ValueError(message("training", "logs", "name at least one file", "none"))
    column, divisor, label = _AXES[x]
    with new_figure("training", *_SIZE) as figure:
        axes = figure.add_subplot()
        for path, color in zip(paths, cycle(f"C{number}" for number in range(10)), strict=False):
            rows, name = read_log(path), os.path.splitext(os.path.basename(path))[0]
            if not rows:
                raise ValueError(message("read_log", f"path {os.fspath(path)!r}", "have rows", "none"))
            for kind, label_of_kind, style in _KINDS:
                points = [(float(row[column]) / divisor, float(row[kind])) for row in rows if row[kind]]
                if points:
                    axes.plot(*zip(*points, strict=True), color=color, label=f"{name}, {label_of_kind}", **style)
        axes.set_xlabel(label)
        axes.set_ylabel("bits per byte")
        axes.set_ylim(bottom=0)
        axes.grid(color=GRID)
        axes.set_axisbelow(True)
        axes.legend()
    return figure
