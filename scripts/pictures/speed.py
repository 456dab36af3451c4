"""How many times as fast rnnkit is as PyTorch and ONNX Runtime, in a few cases that tell most."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import NamedTuple

from .figures import Figures, Ratio
from .style import BLUE, LINE, MUTED, ORANGE, PALE, SKY, Canvas, tint

CASES = {
    "ds2/lstm": "LSTM, large", "ds2/gru": "GRU, large", "small/gru": "GRU, small",
    "varlen/lstm": "LSTM, unequal lengths", "stream/lstm": "LSTM, one sequence", "step-n1-h32/lstm": "LSTM, one step",
}  # fmt: skip
CELLS = {"small/OwnLSTM": "LSTM from its equations", "small/PeepholeLSTM": "PeepholeLSTM", "small/SLSTM": "sLSTM"}
TICKS = 1, 2, 4, 8, 16, 32
LABELS, TOP, ROW, BETWEEN, BARS = 24.0, 92.0, 25.0, 34.0, 112.0  # pixels; BARS the length of the longest


class Column(NamedTuple):
    """One of three charts side by side."""

    x: float
    title: str
    against: str
    passes: tuple[str, ...]
    engine: str
    colour: str


COLUMNS = (
    Column(296, "Training", "against PyTorch", ("train",), "torch", BLUE),
    Column(466, "Inference", "against PyTorch", ("infer", "step"), "torch", SKY),
    Column(636, "Inference", "against ONNX Runtime", ("infer", "step"), "onnxruntime", ORANGE),
)


class Row(NamedTuple):
    """A case: what it is, its sizes, and its ratio in each column, None where there is none."""

    words: str
    sizes: str
    ratios: list[Ratio | None]


def draw() -> Canvas:
    engines, cells = Figures("perf-engines.csv"), Figures("perf-cells.csv")
    rows = _rows(engines, CASES, [column.engine for column in COLUMNS])
    loops = _rows(cells, CELLS, ["torch-loop"] * 2)
    longest = max(ratio.median for row in rows + loops for ratio in row.ratios if ratio is not None)
    start = TOP + len(rows) * ROW + BETWEEN
    bottom = start + len(loops) * ROW if loops else start - BETWEEN
    canvas = Canvas(800, bottom + 48, "Speedup over PyTorch and ONNX Runtime")
    chart = _Chart(canvas, BARS / log2(longest))
    canvas.text(LABELS, 32, "Speedup", size=18, bold=True)
    canvas.text(LABELS, 54, f"rnnkit on {engines.threads}, medians", size=12, colour=MUTED)
    for column in COLUMNS:
        canvas.text(column.x, 32, column.title, size=14, bold=True)
        canvas.text(column.x, 52, column.against, size=12, colour=MUTED)
    chart.draw(COLUMNS, TOP, rows)
    if loops:
        words = f"Cells of your own, against a loop over the steps in PyTorch, {cells.threads}"
        canvas.text(LABELS, start - 16, words, size=12, bold=True)
        chart.draw(COLUMNS[:2], start, loops)
    about = engines.about("rnnkit", "torch", "onnxruntime")
    canvas.text(LABELS, bottom + 26, f"{about}. Logarithmic axes.", size=11, colour=MUTED)
    return canvas


def _rows(figures: Figures, cases: dict[str, str], engines: list[str]) -> list[Row]:
    """Those of the cases that have been measured."""
    result = []
    for case, words in cases.items():
        ratios = []
        for column, engine in zip(COLUMNS, engines, strict=False):
            found = (figures.ratio(f"{case}/{one}", engine) for one in column.passes)
            ratios.append(next(filter(None, found), None))
        if any(ratios):
            result.append(Row(words, figures.sizes(case), ratios))
    return result


class _Chart(NamedTuple):
    """Bars that begin at 1x: to the right where rnnkit is faster."""

    canvas: Canvas
    doubling: float  # pixels of twice the ratio

    def draw(self, columns: Sequence[Column], top: float, rows: list[Row]) -> None:
        for column in columns:
            self._axis(column.x, top, top + len(rows) * ROW)
        for number, row in enumerate(rows):
            y = top + (number + 0.5) * ROW
            self.canvas.text(LABELS, y, row.words, size=12.5)
            self.canvas.text(COLUMNS[0].x - 14, y, row.sizes, size=9.5, colour=MUTED, align="right")
            for column, ratio in zip(columns, row.ratios, strict=False):
                self._bar(column, y, ratio)

    def _axis(self, x: float, top: float, bottom: float) -> None:
        for tick in TICKS:
            place = x + self.doubling * log2(tick)
            if place > x + BARS + 14:
                break
            is_one = tick == 1
            line = 1.5 if is_one else 1
            self.canvas.path([(place, top - 2), (place, bottom)], colour=MUTED if is_one else PALE, line=line)
            if top == TOP:
                self.canvas.text(place, top - 13, f"{tick}×", size=10, colour=MUTED, align="center")

    def _bar(self, column: Column, y: float, ratio: Ratio | None) -> None:
        if ratio is None:
            self.canvas.text(column.x + 6, y, "–", size=12, colour=LINE)
            return
        width = self.doubling * log2(ratio.median)
        self.canvas.box(column.x + min(width, 0), y - 8, abs(width), 16, fill=tint(column.colour, 0.85))
        digits = 2 if ratio.median < 3 else 1
        place, words = column.x + max(width, 0) + 5, f"{ratio.median:.{digits}f}×"
        self.canvas.text(place, y, words, size=12, bold=True)
