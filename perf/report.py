"""The CSV file of a run: a commented header with all that is needed to repeat it, and one row per case and pass."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple, TextIO

from perf.baselines import COMPETITORS, RNNKIT
from perf.cases import Case, flops, row_name
from rnnkit import workspace_nbytes

OK = "ok"  # in the column of an engine whose results are right; otherwise the column says why it is not timed
_FACTS = ("name", "threads", "dtype", "T", "N", "I", "H", "P", "L", "D", "gflop", "workspace_bytes")
_OWN = ("rounds", "seconds", "host_seconds", "gflops", "share_of_peak", "share_of_limit", "samples_per_s")
_OWN += ("peak_memory_bytes", "handover_before", "handover_after")
_OTHER = ("seconds", "host_seconds", "ratio_min", "ratio_median", "ratio_max", "peak_memory_bytes")


def _columns(engines: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of a report with this number of competitors."""
    return (*_FACTS, RNNKIT, *_OWN, *(name for e in engines for name in (e, *(f"{e}_{part}" for part in _OTHER))))


COLUMNS = _columns(COMPETITORS)

_PACKAGES = ("numpy", "numba", "llvmlite", "rnnkit", "torch", "onnxruntime", "openvino", "onnx")
_GPU_PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
_ABSENT = "not installed"
_VARIABLES = ("NUMBA_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_")


class ReportError(ValueError):
    """A file is not a report, or it is empty."""


class Report(NamedTuple):
    """A file that was read: its header by key, and its rows as text by column."""

    header: dict[str, str]
    rows: list[dict[str, str]]


def facts(case: Case, pass_name: str, threads: int) -> dict[str, object]:
    """Return the untimed columns of a row."""
    desc = case.desc
    sizes = case.seq_len, case.batch_size, desc.input_size, desc.hidden_size, desc.output_size, desc.num_layers
    memory = workspace_nbytes(desc, case.seq_len, case.batch_size) if pass_name == "train" else 0
    work = flops(case, pass_name) / 1e9
    values = (row_name(case, pass_name), threads, desc.dtype, *sizes, desc.num_directions, work, memory)
    return dict(zip(_FACTS, values, strict=True))


def machine() -> dict[str, str]:
    """Return the machine and versions that a figure depends on, by key."""
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", "perf", *sys.argv[1:]]),
        "commit": _commit(),
        "machine": f"{_processor()}, {os.cpu_count()} processors, {platform.platform()}",
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
        **{package: found for package in _GPU_PACKAGES if (found := _version(package)) != _ABSENT},
        "environment": " ".join(variables) or "nothing set",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return _ABSENT


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    known = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    if "model name" not in known:
        return platform.machine()
    return f"{known['model name']} (family {known.get('cpu family')}, model {known.get('model')})"


class Writer:
    """Writes a report row by row, so that an interrupted run leaves what it has."""

    def __init__(self, file: TextIO, header: dict[str, str]) -> None:
        self._file = file
        for key, value in header.items():
            print(f"# {key}: {value}", file=file)
        self._csv = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        self._csv.writeheader()

    def write(self, row: dict[str, object]) -> None:
        """Add a row; columns that it lacks stay empty."""
        self._csv.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
        self._file.flush()


def read(path: str | Path) -> Report:
    """Read a report that `Writer` has written; one from before there was a competitor has nothing in its columns."""
    lines = Path(path).read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    found = rows.fieldnames or ()
    missing = set(_columns(engine for engine in COMPETITORS if engine in found)) - set(found)
    if missing:
        raise ReportError(f"{path} is no report: it has no column {', '.join(sorted(missing))}")
    header = dict(line.removeprefix("# ").split(": ", 1) for line in lines if line.startswith("#"))
    return Report(header, [dict.fromkeys(COLUMNS, "") | row for row in rows])


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table: the first column left, the others right."""
    rows = [list(columns), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first, *others = widths
    rows.insert(1, ["-" * first, *("-" * (width - 1) + ":" for width in others)])
    padded = ([row[0].ljust(first), *map(str.rjust, row[1:], others)] for row in rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)
