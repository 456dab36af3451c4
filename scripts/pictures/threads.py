"""Two threads in one call: what each computes and when it waits, by units and by rows of the batch.

The scheduler says which way is taken, and `partition` and `bounds` who has what; the widths follow these shares. They
are no measured times.
"""

from __future__ import annotations

from typing import NamedTuple

from rnnkit import RNNDescriptor
from rnnkit.cpu.layer import layers_of
from rnnkit.cpu.rows import same_length
from rnnkit.cpu.scheduler import Scheduler
from rnnkit_kernels.machine.partition import partition
from rnnkit_kernels.operands import Schedule

from .style import BLUE, GREEN, INK, LINE, MUTED, ORANGE, PAPER, Canvas, tint

DESC = RNNDescriptor("lstm", 80, 80)
STEPS, PANEL = 200, 16  # steps of the call, and units of a panel: a vector of AVX-512
SHOWN = 3  # steps before the break, after which the last one follows
LEFT, WIDTH, LANE = 104.0, 748.0, 34.0  # pixels
INPUT, PRODUCT, EQUATION, BARRIER, BREAK = 24.0, 33.0, 10.0, 7.0, 17.0  # widths of the work of one panel, or of one row
COLOURS = {"input": BLUE, "product": ORANGE, "equations": GREEN, "wait": LINE}
WAITS = "////"  # hatched


class Span(NamedTuple):
    """What a thread does for how long."""

    kind: str
    start: float
    stop: float
    step: int = -1


class Timeline(NamedTuple):
    """The spans of each thread, when all meet at a barrier, and where steps are left out."""

    spans: list[list[Span]]
    barriers: list[float]
    cut: float


def draw() -> Canvas:
    canvas = Canvas(880, 540, "Two threads in one call")
    canvas.text(28, 32, "Two threads in one call", size=16, bold=True)
    sizes = f"LSTM, H = {DESC.hidden_size}, T = {STEPS}, float32."
    sizes += " Schematic: widths follow each thread's share of the work; they are not measured."
    canvas.text(28, 54, sizes, size=12, colour=MUTED)
    one, five = _schedule(1), _schedule(5)
    assert one.bounds.size == 0 and five.bounds.size == 3  # by units, and by rows
    assert one.panel_grain == five.panel_grain == 0
    panels = DESC.hidden_size // PANEL
    units = [own.stop - own.start for own in (partition.py_func(panels, thread_id, 2) for thread_id in (0, 1))]
    rows = [int(stop - start) for start, stop in zip(five.bounds, five.bounds[1:], strict=False)]
    words = f"Thread 0 has {units[0]} panels of {PANEL} units (AVX-512), thread 1 has {units[1]}."
    words += " A barrier ends each step: then h(t) is complete."
    _part(canvas, 88, "N = 1 sequence: split by units", words, _by_units(units, _last_step(one)))
    canvas.path([(28, 278), (852, 278)], colour=LINE)
    words = f"Thread 0 has {rows[0]} rows, thread 1 has {rows[1]}."
    words += f" Neither reads the other's h: the loop has no barrier, a chunk ({five.chunk} steps) has two."
    _part(canvas, 304, "N = 5 sequences: split by rows of the batch", words, _by_rows(rows, _last_step(five)))
    _legend(canvas, 512)
    return canvas


def _schedule(batch_size: int) -> Schedule:
    scheduler = Scheduler(same_length(STEPS, batch_size), 4, threads=2)
    return scheduler.forward(layers_of(DESC), keeps_gates=False)


def _last_step(schedule: Schedule) -> int:
    """Of the first chunk."""
    return min(schedule.chunk, STEPS) - 1


def _step(start: float, share: float, t: int) -> list[Span]:
    middle = start + PRODUCT * share
    return [Span("product", start, middle, t), Span("equations", middle, middle + EQUATION * share)]


def _by_units(shares: list[int], last: int) -> Timeline:
    spans = [[Span("input", 0, INPUT * share)] for share in shares]
    barriers, cut = [], 0.0
    for t in (*range(SHOWN), last):
        for own, share in zip(spans, shares, strict=True):
            own += _step(max(own[-1].stop, cut), share, t)
        meeting = max(own[-1].stop for own in spans) + BARRIER
        for own in spans:
            own.append(Span("wait", own[-1].stop, meeting))
        barriers.append(meeting)
        if t == SHOWN - 1:
            cut = meeting + BREAK
    return Timeline(spans, barriers, cut - BREAK)


def _by_rows(shares: list[int], last: int) -> Timeline:
    """The input's product of all rows is split evenly; then each thread runs its own through the loop."""
    even = INPUT * sum(shares) / len(shares)
    first = even + BARRIER
    cut = first + SHOWN * (PRODUCT + EQUATION) * max(shares)
    stop = cut + BREAK + (PRODUCT + EQUATION) * max(shares) + BARRIER
    spans = [[Span("input", 0, even), Span("wait", even, first)] for _ in shares]
    for own, share in zip(spans, shares, strict=True):
        for t in range(STEPS):
            step = _step(own[-1].stop, share, t)
            own += [one._replace(stop=min(one.stop, cut)) for one in step if one.start < cut]
            if own[-1].stop >= cut:
                break
        own += _step(cut + BREAK, share, last) if share == max(shares) else []
        own.append(Span("wait", max(own[-1].stop, cut + BREAK), stop))
    return Timeline(spans, [first, stop], cut)


def _part(canvas: Canvas, y: float, title: str, words: str, timeline: Timeline) -> None:
    canvas.text(28, y, title, size=14, bold=True)
    canvas.text(28, y + 20, words, size=11.5, colour=MUTED)
    top, bottom = y + 56, y + 56 + 2 * LANE + 10
    scale = WIDTH / timeline.barriers[-1]
    for thread_id, own in enumerate(timeline.spans):
        lane = top + thread_id * (LANE + 10)
        canvas.text(28, lane + LANE / 2, f"thread {thread_id}", size=12)
        for span in own:
            _span(canvas, span, lane, scale)
    for time in timeline.barriers:
        x = LEFT + time * scale
        canvas.path([(x, top - 8), (x, bottom + 8)], colour=INK, line=2.5, layer=4)
    cut = LEFT + (timeline.cut + BREAK / 2) * scale
    canvas.box(cut - BREAK * scale / 2 + 2, top - 1, BREAK * scale - 4, bottom - top + 2, fill=PAPER, layer=3)
    canvas.text(cut, (top + bottom) / 2 - 5, "…", size=16, bold=True, colour=MUTED, align="center")
    canvas.arrow((LEFT, bottom + 22), (LEFT + WIDTH, bottom + 22), colour=MUTED, line=1.2)
    canvas.text(28, bottom + 22, "time", size=11, colour=MUTED)


def _span(canvas: Canvas, span: Span, lane: float, scale: float) -> None:
    x, width, colour = LEFT + span.start * scale, (span.stop - span.start) * scale, COLOURS[span.kind]
    if span.kind == "wait":
        canvas.box(x, lane, width, LANE, fill=PAPER, edge=colour, hatch=WAITS)
        return
    canvas.box(x, lane, width, LANE, fill=tint(colour, 0.5), edge=PAPER, line=1.2)
    words = {"input": "W x", "product": f"R h, t = {span.step}"}.get(span.kind, "")
    if len(words) * 6 < width:
        canvas.text(x + width / 2, lane + LANE / 2, words, size=10.5, align="center")


def _legend(canvas: Canvas, y: float) -> None:
    """What the colours say."""
    x, words = 28.0, ("W x of a chunk (bar shortened)", "R h of a step", "gate equations", "waits")
    for (kind, colour), meaning in zip(COLOURS.items(), words, strict=True):
        if kind == "wait":
            canvas.box(x, y - 8, 24, 16, fill=PAPER, edge=colour, hatch=WAITS)
        else:
            canvas.box(x, y - 8, 24, 16, fill=tint(colour, 0.5), edge=PAPER)
        canvas.text(x + 32, y, meaning, size=11.5, colour=MUTED)
        x += 62 + 6.6 * len(meaning)
    canvas.path([(x + 4, y - 10), (x + 4, y + 10)], colour=INK, line=2.5)
    canvas.text(x + 16, y, "barrier", size=11.5, colour=MUTED)
