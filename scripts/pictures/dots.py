"""Every measured case as a row of dots: the share of the machine's peak, and the ratio to PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import NamedTuple

from .figures import Figures
from .style import BLUE, GREEN, LINE, MUTED, ORANGE, Canvas, tint

TOP, ROW, GAP, HALF, WIDTH = 100.0, 16.0, 8.0, 428.0, 248.0  # pixels; of a row, between families, of a half, its chart
MARK = 3.8  # half a mark


class Style(NamedTuple):
    """The mark of a pass, its name, and how far below the middle of a row it stands, lest it hide another."""

    colour: str
    marker: str
    words: str
    below: float


STYLES = {
    "infer": Style(BLUE, "o", "inference", -2.5), "train": Style(ORANGE, "s", "training", 2.5),
    "step": Style(GREEN, "D", "one step", 0),
}  # fmt: skip


class Place(NamedTuple):
    """Where the row of a case (ds2/lstm) is: the left end of its half's chart, and the middle of the row."""

    x: float
    y: float


class Axis(NamedTuple):
    """Where a value lies, from 0 to 1, and what is written at some of them."""

    scale: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


def shares() -> Canvas:
    figures, passes = Figures("perf-engines.csv"), ("infer", "train")
    axis = Axis(lambda share: share, [(tick / 4, f"{tick * 25} %") for tick in range(5)])
    canvas, places = _frame(figures, "Share of the machine's peak", passes, axis)
    values = {name: float(row["share_of_peak"]) for name, row in figures.rows.items()}
    _marks(canvas, places, axis, passes, values)
    about = f"{figures.about('rnnkit')}, {figures.threads}"
    words = f"{about}. The peak is that of fused multiply-adds, measured in the same run."
    canvas.text(24, canvas.size[1] - 24, words, size=11, colour=MUTED)
    return canvas


def ratios() -> Canvas:
    figures, passes = Figures("perf-engines.csv"), ("infer", "train", "step")
    found = {name: ratio for name in figures.rows if (ratio := figures.ratio(name, "torch")) is not None}
    least, most = min(0.8, *(one.least for one in found.values())), max(one.most for one in found.values())

    def scale(ratio: float) -> float:
        return log2(ratio / least) / log2(most / least)

    powers = (2.0**power for power in range(ceil(log2(least)), int(log2(most)) + 1))
    axis = Axis(scale, [(power, f"{power:g}×") for power in powers])
    canvas, places = _frame(figures, "Times as fast as PyTorch", passes, axis)
    for name, ratio in found.items():
        case, one = name.rsplit("/", 1)
        x, y = places[case].x, places[case].y + STYLES[one].below
        low, high = (x + WIDTH * scale(value) for value in (ratio.least, ratio.most))
        canvas.path([(low, y), (high, y)], colour=tint(STYLES[one].colour, 0.6), line=1.6, layer=3)
    _marks(canvas, places, axis, passes, {name: ratio.median for name, ratio in found.items()})
    about = f"{figures.about('rnnkit', 'torch')}, {figures.threads}"
    words = f"{about}. Medians; lines from the smallest ratio to the largest; logarithmic axes."
    canvas.text(24, canvas.size[1] - 24, words, size=11, colour=MUTED)
    return canvas


def _marks(
    canvas: Canvas, places: dict[str, Place], axis: Axis, passes: Sequence[str], values: dict[str, float]
) -> None:
    for one in reversed(passes):  # the first on top
        style = STYLES[one]
        own = ((place, values.get(f"{case}/{one}")) for case, place in places.items())
        here = [(place, value) for place, value in own if value is not None]
        points = [(place.x + WIDTH * axis.scale(value), place.y + style.below) for place, value in here]
        canvas.dots(points, style.colour, marker=style.marker, radius=MARK)


def _families(figures: Figures, passes: Sequence[str]) -> dict[str, list[str]]:
    """The cases that have a row of these passes, by family."""
    result: dict[str, list[str]] = {}
    for name in figures.rows:
        case, one = name.rsplit("/", 1)
        if one in passes:
            own = result.setdefault(case.split("/")[0], [])
            own += [case] if case not in own else []
    return result


def _placed(families: dict[str, list[str]]) -> dict[str, Place]:
    """Families below each other in two halves; each takes at least two rows, for its name and its sizes."""
    heights = [max(len(cases), 2) * ROW + GAP for cases in families.values()]
    result, half, y = {}, 0, TOP
    for cases, height in zip(families.values(), heights, strict=True):
        if half == 0 and y - TOP + height / 2 > sum(heights) / 2:
            half, y = 1, TOP
        for row, case in enumerate(cases):
            result[case] = Place(half * HALF + 172, y + (row + 0.5) * ROW)
        y += height
    return result


def _frame(figures: Figures, title: str, passes: Sequence[str], axis: Axis) -> tuple[Canvas, dict[str, Place]]:
    """A canvas with the names of all rows and the axes, and where the rows are."""
    families = _families(figures, passes)
    places = _placed(families)
    bottom = max(place.y for place in places.values()) + ROW / 2
    canvas = Canvas(2 * HALF + 24, bottom + 52, title)
    canvas.text(24, 32, title, size=16, bold=True)
    x = 24.0
    for one in passes:
        style = STYLES[one]
        if not any(name.endswith(f"/{one}") for name in figures.rows):
            continue
        canvas.dots([(x + 4, 57)], style.colour, marker=style.marker, radius=MARK)
        canvas.text(x + 14, 57, style.words, size=12, colour=MUTED)
        x += 36 + 7 * len(style.words)
    for cases in families.values():
        _family(canvas, cases, figures.sizes(cases[0]), [places[case] for case in cases])
    for left in dict.fromkeys(place.x for place in places.values()):
        end = max(place.y for place in places.values() if place.x == left) + ROW / 2 + 2
        for value, words in axis.ticks:
            at = left + WIDTH * axis.scale(value)
            is_one = words == "1×"
            canvas.path([(at, TOP - 6), (at, end)], colour=MUTED if is_one else LINE, line=1.5 if is_one else 0.8)
            canvas.text(at, TOP - 15, words, size=10, colour=MUTED, align="center")
    return canvas, places


def _family(canvas: Canvas, cases: list[str], sizes: str, places: list[Place]) -> None:
    left, top = places[0].x - 152, places[0].y - ROW / 2
    rows = max(len(cases), 2)
    canvas.box(left - 8, top - GAP / 2 + 1, 412, rows * ROW + GAP - 2, fill="#f5f6f9", corner=4, layer=0.5)
    canvas.text(left, places[0].y, cases[0].split("/")[0], size=11.5, bold=True)
    canvas.text(left, places[0].y + ROW, sizes, size=9.5, colour=MUTED)
    for case, place in zip(cases, places, strict=True):
        canvas.text(place.x - 10, place.y, case.split("/")[1].removeprefix("rnn_"), size=10.5, align="right")
        canvas.path([(place.x, place.y), (place.x + WIDTH, place.y)], colour="#e4e8ee", line=0.8)
