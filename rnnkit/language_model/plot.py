"""Plots of logs: training and validation bits per byte of one or several runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import cycle

from matplotlib.figure import Figure

from rnnkit.errors import message
from rnnkit.language_model.report import read_log

AXES = {  # name -> column, divisor, label
    "bytes": ("bytes", 1e6, "training text read (MB)"),
    "steps": ("step", 1, "steps"),
    "minutes": ("seconds", 60, "time (min)"),
}
KINDS = (
    ("train_bits", "training", {"alpha": 0.5, "linewidth": 1}),
    ("validation_bits", "validation", {"linestyle": "--", "marker": "o", "markersize": 4}),
)
SIZE, DPI = (8, 5), 120  # inches, pixels an inch


def curves(logs: Sequence[str], x: str) -> Figure:
    """Plot the curves of several runs.

    Parameters
    ----------
    logs : sequence of str
        Names of log files of `train --log`.
    x : str
        A key of `AXES`.
    """
    column, divisor, label = AXES[x]
    figure = Figure(SIZE, DPI, layout="constrained")
    axes = figure.add_subplot()
    for path, color in zip(logs, cycle(f"C{number}" for number in range(10)), strict=False):
        rows, name = read_log(path), os.path.splitext(os.path.basename(path))[0]
        if not rows:
            raise ValueError(message("read_log", f"path {path!r}", "have rows", "none"))
        for kind, label_of_kind, style in KINDS:
            points = [(float(row[column]) / divisor, float(row[kind])) for row in rows if row[kind]]
            if points:
                axes.plot(*zip(*points, strict=True), color=color, label=f"{name}, {label_of_kind}", **style)
    axes.set_xlabel(label)
    axes.set_ylabel("bits per byte")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
