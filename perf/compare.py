"""Compare two reports, and print the tables of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, log
from pathlib import Path
from typing import Any

from perf import report
from perf.baselines import CELL_LOOPS, COMPETITORS, UNFUSED
from perf.report import Report, table

_VOLATILE = ("date", "command")


def compare(before: str | Path, after: str | Path) -> str:
    """Return how much faster the second report is than the first one, row by row; above 1 is faster."""
    old, new = report.read(before), report.read(after)
    known = _timed(old)
    rows = []
    for key, row in _timed(new).items():
        if key in known:
            shares = (float(each["share_of_peak"]) for each in (known[key], row))
            ratio = float(known[key]["seconds"]) / float(row["seconds"])
            rows.append((*key, *(f"{share:.3f}" for share in shares), f"{ratio:.3f}"))
    if not rows:
        raise report.ReportError(f"{before} and {after} have no timed row in common")
    mean = exp(sum(log(float(row[-1])) for row in rows) / len(rows))
    lines = [f"{key}: {before} -> {after}" for key, (before, after) in _changes(old, new).items()]
    lines += [table(("case", "threads", "share before", "share after", "times as fast"), rows)]
    return "\n".join([*lines, f"geometric mean of {len(rows)} rows: {mean:.3f} times as fast"])


def _timed(source: Report) -> dict[tuple[str, str], dict[str, str]]:
    return {(row["name"], row["threads"]): row for row in source.rows if row["seconds"]}


def _changes(old: Report, new: Report) -> dict[str, tuple[str, str]]:
    """What differs between the two machines and versions, also where only one report says it."""
    keys = dict.fromkeys((*new.header, *old.header))
    pairs = {key: tuple(source.header.get(key, "not given") for source in (old, new)) for key in keys}
    return {key: pair for key, pair in pairs.items() if key not in _VOLATILE and pair[0] != pair[1]}


def tables(path: str | Path) -> str:
    """Return the Markdown tables of a report: its header, every row, and fused against non-fused."""
    source = report.read(path)
    header = "\n".join(f"- {key}: {value}" for key, value in source.header.items())
    return "\n\n".join(part for part in (header, _shares(source), fused(source.rows)) if part)


def _shares(source: Report) -> str:
    timed = _timed(source)
    shown = {engine for engine in COMPETITORS if any(row[f"{engine}_seconds"] for row in timed.values())} - {UNFUSED}
    shown |= set() if shown & set(CELL_LOOPS) else {"torch", "onnxruntime", "openvino"}
    competitors = [engine for engine in COMPETITORS if engine in shown]
    rows = []
    for (name, threads), row in timed.items():
        ratios = [row[f"{engine}_ratio_median"] for engine in competitors]
        limit = f"{float(row['share_of_limit']):.2f}" if row["share_of_limit"] else ""
        cells = (f"{float(row['seconds']) * 1e3:.3f}", f"{float(row['share_of_peak']):.2f}", limit)
        rows.append((name, threads, *cells, *(f"{float(ratio):.2f}x" if ratio else "" for ratio in ratios)))
    headings = ("case", "threads", "ms", "of FMA peak", "of limit", *(f"against {engine}" for engine in competitors))
    return table(headings, rows) if rows else ""


def fused(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return samples per second as MXNet's design page has them, for the rows that a non-fused one stands beside."""
    cells = []
    for row in rows:
        if row.get(f"{UNFUSED}_seconds"):
            speeds = [int(row["N"]) / float(row[column]) for column in ("seconds", f"{UNFUSED}_seconds")]
            ratio = f"{float(row[f'{UNFUSED}_ratio_median']):.1f}"
            cells.append((row["name"], str(row["threads"]), *(f"{speed:.1f}" for speed in speeds), ratio))
    headings = ("case", "threads", "fused, samples/s", "non-fused, samples/s", "ratio")
    return table(headings, cells) if cells else ""
