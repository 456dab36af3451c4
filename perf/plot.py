"""Plot a report: the share of the peak of each case, and how time grows with each size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

from perf import report

_COLOURS = {"infer": "tab:blue", "train": "tab:orange"}
_GROWTH = {"T": "linear", "L": "linear", "N": "log", "H": "log"}  # a straight line in T and L; N and H over decades


def plot(path: str | Path, out: str | Path) -> None:
    """Write the picture of a report."""
    source = report.read(path)
    rows = [row for row in source.rows if row["seconds"] and _pass(row) in _COLOURS]
    if not rows:
        raise report.ReportError(f"{path} has no timed row of a pass that is drawn: {', '.join(_COLOURS)}")
    figure = draw(source.header, rows)
    figure.savefig(out, dpi=110)
    pyplot.close(figure)


def draw(header: dict[str, str], rows: list[dict[str, str]]) -> Figure:
    """Return the picture of timed rows: large marks at the largest number of threads; others small and pale."""
    most = max(int(row["threads"]) for row in rows)
    cases = [row for row in rows if not row["name"].startswith("sweep-")]
    height = max(7.0, 1.2 + 0.19 * len({_case(row) for row in cases}))
    figure = pyplot.figure(figsize=(14, height), layout="constrained")
    left, right = figure.subfigures(1, 2)
    _shares(left.subplots(), cases, most)
    for axes, (size, scale) in zip(right.subplots(2, 2).flat, _GROWTH.items(), strict=True):
        _growth(axes, [row for row in rows if row["name"].startswith(f"sweep-{size}")], size, scale, most)
    figure.suptitle(f"rnnkit {header.get('commit', '')} on {header.get('machine', '')}", fontsize=9)
    return figure


def _case(row: dict[str, str]) -> str:
    return row["name"].rsplit("/", 1)[0]


def _pass(row: dict[str, str]) -> str:
    return row["name"].rsplit("/", 1)[1]


def _shares(axes: Any, rows: list[dict[str, str]], most: int) -> None:
    if not rows:
        axes.set_axis_off()
        return
    names = list(dict.fromkeys(_case(row) for row in rows))
    for pass_name, colour in _COLOURS.items():
        for threads in sorted({int(row["threads"]) for row in rows}):
            own = [row for row in rows if _pass(row) == pass_name and int(row["threads"]) == threads]
            if not own:
                continue
            shares = [float(row["share_of_peak"]) for row in own]
            places = [names.index(_case(row)) for row in own]
            style = {"s": 36} if threads == most else {"s": 12, "alpha": 0.5}
            axes.scatter(shares, places, color=colour, label=f"{pass_name}, threads: {threads}", **style)
    axes.set(title="Share of the FMA peak", xlim=(0, 1), ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="best")


def _growth(axes: Any, rows: list[dict[str, str]], size: str, scale: str, most: int) -> None:
    if not rows:
        axes.set_axis_off()
        return
    for pass_name, colour in _COLOURS.items():
        own = [row for row in rows if _pass(row) == pass_name and int(row["threads"]) == most]
        if not own:
            continue
        own.sort(key=lambda row: int(row[size]))
        values, seconds = [int(row[size]) for row in own], [float(row["seconds"]) for row in own]
        at_peak = [time * float(row["share_of_peak"]) for row, time in zip(own, seconds, strict=True)]
        axes.plot(values, [1e3 * time for time in seconds], "o-", markersize=4, color=colour, label=pass_name)
        axes.plot(values, [1e3 * time for time in at_peak], ":", color=colour, label=f"{pass_name} at the FMA peak")
    axes.set(title=f"Growth with {size}, LSTM, threads: {most}", xlabel=size, ylabel="ms", xscale=scale, yscale=scale)
    if scale == "log":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
    if scale == "linear":
        axes.set(xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
