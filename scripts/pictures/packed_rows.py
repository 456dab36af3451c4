"""Sequences of unequal lengths: which row stands where, and which states each direction reads.

All row numbers are those that `rnnkit.cpu.rows` lists for the kernels.
"""

from __future__ import annotations

import numpy as np

from rnnkit.cpu.rows import StepRows

from .style import BLUE, GREEN, INK, LINE, MUTED, ORANGE, PALE, PAPER, PURPLE, Canvas, tint

LENGTHS = 2, 5, 3, 4
T, N = max(LENGTHS), len(LENGTHS)
COLOURS = BLUE, ORANGE, GREEN, PURPLE  # of the sequences
CELL, WIDE = (36.0, 30.0), (46.0, 30.0)  # pixels of a row, and of a state
STRIP = 300.0, 132.0  # where the packed rows begin


def draw() -> Canvas:
    steps = StepRows(T, N, padded=True).relist(T, np.array(LENGTHS))
    canvas = Canvas(880, 560, "Packed rows")
    canvas.text(28, 32, "Sequences of unequal lengths", size=16, bold=True)
    lengths = ", ".join(map(str, LENGTHS))
    canvas.text(28, 54, f"T = {T} steps, N = {N} sequences with {lengths} steps", size=12, colour=MUTED)
    _given(canvas, 60, 132, steps)
    _packed(canvas, *STRIP, steps)
    canvas.path([(28, 306), (852, 306)], colour=LINE)
    canvas.text(28, 330, "States h and c, (T + 2, N, H)", size=14, bold=True)
    words = "Step t writes k = t + 1. The forward direction starts from k = 0, the reverse direction from k = T + 1."
    canvas.text(28, 350, words, size=11.5, colour=MUTED)
    for direction in (0, 1):
        _states(canvas, 60 + 434 * direction, 404, steps, direction)
    return canvas


def _cell(
    canvas: Canvas,
    x: float,
    y: float,
    words: str,
    colour: str | None,
    size: tuple[float, float] = CELL,
    strong: bool = False,
) -> None:
    """One row of an array; of padding without a colour."""
    fill = PALE if colour is None else tint(colour, 0.3)
    width, height = size
    canvas.box(x, y, width, height, fill=fill, edge=PAPER, line=1.5)
    ink = MUTED if colour is None else INK
    canvas.text(x + width / 2, y + height / 2, words, size=11, colour=ink, align="center")
    if strong:
        canvas.box(x + 1, y + 1, width - 2, height - 2, edge=INK, line=1.6, layer=4)


def _numbers(canvas: Canvas, x: float, y: float, numbers: range, what: str, width: float = CELL[0]) -> None:
    canvas.text(x - 12, y, what, size=11, colour=MUTED, align="right")
    for place, number in enumerate(numbers):
        canvas.text(x + (place + 0.5) * width, y, str(number), size=11, colour=MUTED, align="center")


def _sequences(canvas: Canvas, x: float, y: float) -> None:
    for n in range(N):
        words = f"n = {n}" if n == 0 else str(n)
        canvas.text(x - 12, y + (n + 0.5) * CELL[1], words, size=11, colour=MUTED, align="right")


def _given(canvas: Canvas, x: float, y: float, steps: StepRows) -> None:
    """x as it was given, with its row numbers."""
    canvas.text(x, y - 44, "x and y, (T, N, …)", size=13, bold=True)
    _numbers(canvas, x, y - 14, range(T), "t =")
    _sequences(canvas, x, y)
    valid = set(steps.whole.rows.numbers[: steps.whole.count])
    for row in range(T * N):
        t, n = divmod(row, N)
        _cell(canvas, x + t * CELL[0], y + n * CELL[1], str(row), COLOURS[n] if row in valid else None)
    canvas.text(x, y + N * CELL[1] + 16, "row t·N + n; grey: padding", size=11, colour=MUTED)


def _packed(canvas: Canvas, x: float, y: float, steps: StepRows) -> None:
    """The rows of the gate buffer, step by step; each says which row of x it belongs to."""
    part = steps.whole
    canvas.text(x, y - 44, "Gate buffer: packed rows, step by step, the longest sequences first", size=13, bold=True)
    for t in range(T):
        start, stop = int(part.starts[t]), int(part.starts[t + 1])
        left, right = x + start * CELL[0], x + stop * CELL[0]
        canvas.path([(left + 3, y - 6), (left + 3, y - 10), (right - 3, y - 10), (right - 3, y - 6)], colour=MUTED)
        canvas.text((left + right) / 2, y - 19, f"t = {t}", size=11, colour=MUTED, align="center")
        canvas.text(left, y + CELL[1] + 12, str(start), size=10, colour=MUTED, align="center")
    canvas.text(x + part.count * CELL[0], y + CELL[1] + 12, str(part.count), size=10, colour=MUTED, align="center")
    for position, (row, n) in enumerate(zip(part.rows.numbers, part.batch.numbers[: part.count], strict=False)):
        assert row % N == n
        _cell(canvas, x + position * CELL[0], y, str(row), COLOURS[n])
    words = (
        "A box is a row of 4H numbers (LSTM); its number is the row of x. Padding is not computed.",
        "W x of a chunk of steps is one product: its rows are neighbours.",
        "Step t has the rows starts[t]:starts[t+1]; the numbers below are starts.",
        "The forward direction runs from left to right, the reverse direction from right to left.",
    )
    canvas.lines(x, y + 66, words, size=11.5, colour=MUTED, leading=19)


def _states(canvas: Canvas, x: float, y: float, steps: StepRows, direction: int) -> None:
    """What each step of a direction reads and writes."""
    part = steps.whole
    before, after = part.states(direction, double_buffered=False)
    initial, final = steps.initial[direction], steps.final[direction]
    canvas.text(x, y - 32, ("forward", "reverse")[direction], size=13, bold=True)
    _numbers(canvas, x, y - 10, range(T + 2), "k =", WIDE[0])
    _sequences(canvas, x, y)
    written = {int(number) + after.shift for number in after.numbers[: part.count]}
    starts = {int(number) + initial.shift for number in initial.numbers}
    ends = {int(number) + final.shift for number in final.numbers}
    for row in range((T + 2) * N):
        k, n = divmod(row, N)
        words = "hx" if row in starts else "hy" if row in ends else ""
        used = row in written or row in starts
        _cell(canvas, x + k * WIDE[0], y + n * CELL[1], words, COLOURS[n] if used else None, WIDE, strong=row in ends)
    for source, target in zip(before.numbers[: part.count], after.numbers[: part.count], strict=True):
        _step(canvas, x, y, int(source) + before.shift, int(target) + after.shift)


def _step(canvas: Canvas, x: float, y: float, source: int, target: int) -> None:
    """An arrow from the state before a step to the one after it."""
    (k, n), (end, same) = divmod(source, N), divmod(target, N)
    assert n == same
    middle, way = y + (n + 0.5) * CELL[1] + 9, 1 if end > k else -1
    start, stop = x + (k + 0.5) * WIDE[0] + 12 * way, x + (end + 0.5) * WIDE[0] - 12 * way
    canvas.arrow((start, middle), (stop, middle), colour=INK, line=1, head=5)
