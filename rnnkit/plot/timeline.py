"""The time of one call and the threads that share it: what `rnnkit.explain` says, with measured times."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import rnnkit
from rnnkit.errors import message, wrong_type
from rnnkit.plot.figures import GRID, new_figure

_SIZE = 9, 4  # inches
_COLORS = {"forward": "#4477aa", "backward": "#aa6644", "infer": "#448866"}
_THICKNESS = 0.7  # of the bar with the most threads, in rows
_MAX_LANES = 32  # more threads are drawn as one bar without lanes
_UNITS = (1, "s"), (1e-3, "ms"), (1e-6, "µs")
_SIZES = (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")


class _Times(NamedTuple):
    """Seconds of some calls: the median and the quartiles."""

    median: float
    low: float
    high: float


def explanation(net: Any, T: int, N: int, *, repeats: int = 5) -> Any:
    """Draw how long forward, backward and infer take for one size, and what :func:`rnnkit.explain` says of them.

    The calls run here, on random numbers, with the number of threads that the next call has. What a single thread does
    within a call is not measured, and not drawn.

    Parameters
    ----------
    net : Network or RNNDescriptor
        The network. Its weights are not read: random ones take as long.
    T : int
        seq_len, at least 1.
    N : int
        batch_size, at least 1.
    repeats : int
        Calls to measure, at least 1, after one that is not measured, as it may compile kernels.

    Returns
    -------
    matplotlib.figure.Figure
        A bar per call: its length is the median time, its black line spans the middle half of the times, and it has a
        lane for each thread that shares the work. backward begins where forward ends, as in training. Beside a bar
        stand the route of the call, its memory, and the operations of its matrix products per second.

    Raises
    ------
    ImportError
        Matplotlib is not installed.
    TypeError, ValueError
        As :func:`rnnkit.explain`; or T, N or `repeats` is below 1.
    """
    for name, size in (("T", T), ("N", N), ("repeats", repeats)):
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
            raise wrong_type("explanation", name, "an int", size)
        if size < 1:
            raise ValueError(message("explanation", name, "be at least 1", size))
    explained = rnnkit.explain(net, T, N)
    with new_figure("explanation", *_SIZE) as figure:
        times = _measured(explained, int(repeats))
        _draw(figure, explained, times)
        calls = "1 call" if repeats == 1 else f"{repeats} calls"
        figure.suptitle(f"{explained.desc}\nT={T}, N={N}; median of {calls}", fontsize=10)
    return figure


def _measured(explained: rnnkit.Explanation, repeats: int) -> dict[str, _Times]:
    """Run the calls and return their times."""
    desc, rng = explained.desc, np.random.default_rng(0)
    w = rnnkit.init_weights(desc, seed=0)
    size = explained.seq_len, explained.batch_size
    x = rng.standard_normal((*size, desc.input_size)).astype(desc.dtype)
    inputs = {one.name: np.full((*size, 1), 0.5, desc.dtype) for one in desc.cell.declaration.inputs}
    options: dict[str, Any] = {"inputs": inputs} if inputs else {}
    results: list[Any] = []

    def forward() -> None:
        workspace = results.pop().workspace if results else None
        results.append(rnnkit.forward(desc, w, x, workspace=workspace, seed=0, **options))

    def backward() -> None:
        rnnkit.backward(desc, w, results[-1].workspace, dy)

    def infer() -> None:
        rnnkit.infer(desc, w, x, **options)

    forward()
    dy = np.ones_like(results[-1].y)
    calls: dict[str, Callable[[], None]] = {"forward": forward, "backward": backward, "infer": infer}
    return {name: _timed(call, repeats) for name, call in calls.items()}


def _timed(call: Callable[[], None], repeats: int) -> _Times:
    seconds = []
    for _ in range(repeats + 1):
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return _Times(*map(float, np.quantile(seconds[1:], (0.5, 0.25, 0.75))))


def _draw(figure: Any, explained: rnnkit.Explanation, times: dict[str, _Times]) -> None:
    starts = {"forward": 0.0, "backward": times["forward"].median, "infer": 0.0}
    end = max(starts[name] + one.high for name, one in times.items())
    scale, unit = _unit(end, _UNITS)
    most = max(getattr(explained, name).threads for name in times)
    axes, beside = figure.subplots(1, 2, width_ratios=(2, 1), sharey=True)
    for row, (name, one) in enumerate(times.items()):
        route, start = getattr(explained, name), starts[name] / scale
        lanes = route.threads if most <= _MAX_LANES else 1
        height = _THICKNESS * route.threads / most
        tops = row - height / 2 + np.arange(lanes) * height / lanes
        place = {"left": start, "align": "edge", "color": _COLORS[name], "edgecolor": "white"}
        axes.barh(tops, one.median / scale, height / lanes, **place)
        reach = [start + one.low / scale, start + one.high / scale]
        axes.plot(reach, [row, row], color="black", linewidth=1.5)
        beside.text(0, row, _words(route, one), va="center", fontsize=9)
    axes.set_xlim(0, end / scale * 1.03)
    axes.set_ylim(len(times) - 0.5, -0.5)
    axes.set_yticks(range(len(times)), [*times])
    axes.set_xlabel(f"time ({unit})")
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.set_title("a lane for each thread that shares the work", loc="left", fontsize=9)
    beside.set_axis_off()


def _words(route: rnnkit.Route, times: _Times) -> str:
    threads = "1 thread" if route.threads == 1 else f"{route.threads} threads"
    calls = "1 kernel call" if route.kernel_calls == 1 else f"{route.kernel_calls} kernel calls"
    (scale, unit), (size, prefix) = _unit(times.median, _UNITS), _unit(route.nbytes, _SIZES)
    rate = f"{route.flops / times.median / 1e9:.3g} GFLOP/s"
    first = f"{times.median / scale:.3g} {unit}, {threads}, {rate}"
    return f"{first}\n{route.kind}, weights {route.weights}\n{calls}, {route.nbytes / size:.3g} {prefix}"


def _unit(number: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    """Return the largest unit that is not above a number, or the smallest unit."""
    return next((one for one in units if number >= one[0]), units[-1])
