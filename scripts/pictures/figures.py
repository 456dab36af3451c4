"""The measured figures that charts show: reports of `python -m perf run --out`, kept in docs/data."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from perf import report
from perf.cpus import kind_of

DATA = Path(__file__).resolve().parents[2] / "docs" / "data"
UNSTEADY = 2.5  # the largest ratio of a row over its smallest, from which on another program was at work
BUSY = 1e-6  # seconds in which a cache line comes from one core to the other: later, or never, if a core is taken


class Ratio(NamedTuple):
    """Times as fast as a competitor: pair by pair, the smallest, the median and the largest."""

    least: float
    median: float
    most: float


class Figures:
    """The rows of a report by name (ds2/lstm/train), without those of a busy machine; of a missing report none."""

    def __init__(self, name: str) -> None:
        self.header, rows = report.read(DATA / name) if (DATA / name).exists() else ({}, [])
        self._timed = {row["name"]: row for row in rows if row["seconds"]}
        self.rows = {name: row for name, row in self._timed.items() if _is_quiet(row)}
        self.left_out = [name for name in self._timed if name not in self.rows]

    def ratio(self, name: str, engine: str) -> Ratio | None:
        """None where the competitor was not timed, or too unsteadily."""
        row = self.rows.get(name)
        if row is None or not row[f"{engine}_ratio_median"]:
            return None
        found = Ratio(*(float(row[f"{engine}_ratio_{part}"]) for part in ("min", "median", "max")))
        if found.most > UNSTEADY * found.least:
            self.left_out.append(f"{name} against {engine}")
            return None
        return found

    def sizes(self, case: str) -> str:
        """T, N and H of a case (ds2/lstm)."""
        row = next(row for name, row in self._timed.items() if name.startswith(case + "/"))
        return f"T {row['T']}, N {row['N']}, H {row['H']}"

    def about(self, *packages: str) -> str:
        """The versions and the machine."""
        names = {"rnnkit": "rnnkit", "torch": "PyTorch", "onnxruntime": "ONNX Runtime"}
        versions = (f"{names[package]} {self.header[package].split('+')[0]}" for package in packages)
        machine = re.match(r"[^(,]*(\([^)]*\))?", self.header["machine"])[0]
        with suppress(report.ReportError):  # a kind that has no name here
            known = kind_of(machine).split(maxsplit=1)[1]  # without the maker, which the processor's name tells
            machine = re.sub(r"\([^)]*\)", f"({known})", machine)
        return f"{', '.join(versions)}; {machine}"

    @property
    def threads(self) -> str:
        """Of all rows."""
        (count,) = {int(row["threads"]) for row in self.rows.values()}
        return {1: "one thread", 2: "two threads"}.get(count, f"{count} threads")


def _is_quiet(row: dict[str, str]) -> bool:
    """Whether no other program had a core before or after; a row on one thread does not say."""
    handovers = [float(row[name]) for name in ("handover_before", "handover_after") if row[name]]
    return all(seconds <= BUSY for seconds in handovers)  # nan is not
