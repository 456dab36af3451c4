"""The page of speedups by CPU: its tables, between two marks, are made from the file of CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from textwrap import fill

from perf import cpus
from perf.cpus import COLUMNS, GROUPS, PEERS, Row
from perf.report import ReportError

DOCS = Path(__file__).parents[1] / "docs"
DATA = DOCS / "data" / "perf-cpus.csv"
PAGE = DOCS / "explanation" / "performance-by-cpu.md"
START, STOP = "<!-- tables: python -m perf cpu -->", "<!-- end of the tables -->"

_HEADINGS = (
    "cases",
    "threads",
    *(f"{'training' if is_training else 'inference'}: vs {PEERS[peer]}" for peer, is_training in COLUMNS.values()),
)


def add(path: str | None, kind: str | None = None, note: str | None = None) -> str:
    """Add the rows of a report to the file, or none, and write the tables of the page anew; return what was done."""
    new = [] if path is None else cpus.rows_of(path, kind, note)
    known = cpus.read(DATA)
    rows = cpus.with_rows(known, new)
    text = with_tables(PAGE.read_text(encoding="utf-8"), rows)  # refuses a page without marks before a file is changed
    cpus.write(DATA, rows)
    PAGE.write_text(text, encoding="utf-8")
    replaced = len(known) + len(new) - len(rows)
    named = [f"{row['cpu']}, {row['date']}, rnnkit {row['rnnkit']}, threads: {row['threads']}" for row in new]
    return "\n".join([*named, f"{DATA.name}: {len(new) - replaced} added, {replaced} replaced, {len(rows)} in all"])


def with_tables(page: str, rows: Iterable[Row]) -> str:
    """Return the page with the tables of these rows between its marks."""
    before, start, rest = page.partition(START)
    _, stop, after = rest.partition(STOP)
    if not (start and stop):
        raise ReportError(f"the page must have the lines {START} and {STOP}")
    return f"{before}{START}\n\n{tables(rows)}\n\n{STOP}{after}"


def tables(rows: Iterable[Row]) -> str:
    """Return a section for each kind, that which was measured last first; the newest row of each number of threads."""
    by_age = sorted(rows, key=lambda row: row["date"])
    newest = {(row["cpu"], row["threads"]): row for row in by_age}
    dates = {row["cpu"]: row["date"] for row in by_age}
    shown = sorted(newest.values(), key=lambda row: (row["cpu"], int(row["threads"])))
    shown.sort(key=lambda row: dates[row["cpu"]], reverse=True)
    return "\n\n".join(_section(cpu, list(own)) for cpu, own in groupby(shown, key=lambda row: row["cpu"]))


def _section(cpu: str, rows: list[Row]) -> str:
    lines = [_slowest(row) for row in rows] + [_groups(row) for row in rows]
    table = [_line(_HEADINGS), "|---" * len(_HEADINGS) + "|", *(line for part in lines for line in part)]
    return "\n\n".join([f"## {cpu}", *map(_about, rows), "\n".join(table)])


def _about(row: Row) -> str:
    versions = [f"{name} {row[peer]}" for peer, name in PEERS.items() if row[peer]]
    peak = f"; peak {float(row['peak_float32']):.0f} GF/s in float32" if row["peak_float32"] else ""
    note = f"; {row['note']}" if row["note"] else ""
    threads = "One thread" if row["threads"] == "1" else f"{row['threads']} threads"
    measured = f"rnnkit {row['rnnkit']} at commit {row['commit']}, {row['date']}"
    text = f"{threads}: {measured}, beside {' and '.join(versions)}{peak}{note}."
    escaped = re.sub(r"([*_|`<\[])", r"\\\1", text)  # a note may name globs
    return fill(escaped, 120, break_long_words=False, break_on_hyphens=False)


def _slowest(row: Row) -> list[str]:
    """The cases in which a peer is faster, or where there is none, that which gains least."""
    slower = [part.split(" ") for part in row["slower"].split("; ") if part]
    lines = [_one(row, f"**slower**: {_words(name)}", name, peer, ratio) for name, peer, ratio in slower]
    for peer in PEERS:
        name, ratio = row[f"worst_{peer}_case"], row[f"worst_{peer}_ratio"]
        if name and not any(peer == each for _, each, _ in slower):
            lines.append(_one(row, f"gains least: {_words(name)}", name, peer, ratio))
    return lines


def _one(row: Row, title: str, name: str, peer: str, ratio: str) -> str:
    own = peer, name.endswith("/train")
    return _line((title, row["threads"], *(f"{ratio}x" if each == own else "" for each in COLUMNS.values())))


def _words(name: str) -> str:
    """`ds2/lstm/train` as the page writes it."""
    family, mode, _ = name.split("/")
    return f"{family} {mode}"


def _groups(row: Row) -> list[str]:
    """The geometric means of each group of which a case was measured."""
    lines = []
    for group, title in GROUPS.items():
        count = row[f"{group}_cases"]
        if count:
            ratios = [row[f"{group}_{column}"] for column in COLUMNS]
            means = [f"{ratio}x" if ratio else "" for ratio in ratios]
            lines.append(_line((f"{title}: {count} case{'' if count == '1' else 's'}", row["threads"], *means)))
    return lines


def _line(cells: Iterable[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)
