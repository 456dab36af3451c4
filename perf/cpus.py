"""Speedups by kind of CPU: a report becomes one row for each number of threads, in a file that is kept in docs/data."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from math import exp, log
from pathlib import Path

from perf import report
from perf.cases import CASES, Case, row_name

PEERS = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime"}
COLUMNS = {"torch_infer": ("torch", False), "onnxruntime_infer": ("onnxruntime", False), "torch_train": ("torch", True)}
"""What has a geometric mean in each group: a peer, and whether in training. A single step counts as inference."""

KINDS = {
    "Intel Ice Lake": (6, {106, 108}),
    "Intel Sapphire Rapids": (6, {143}),
    "Intel Granite Rapids": (6, {173, 174}),
    "Intel Emerald Rapids": (6, {207}),
    "AMD Zen 3": (25, {*range(0x00, 0x10), *range(0x20, 0x60)}),
    "AMD Zen 4": (25, {*range(0x10, 0x20), *range(0x60, 0xB0)}),
    "AMD Zen 5": (26, {*range(0x00, 0x30), *range(0x40, 0x50), *range(0x60, 0x80)}),
}
"""Family and models of each kind, as `lscpu` prints them. Linux has them in `asm/intel-family.h` and `cpu/amd.c`."""

GROUPS = {
    "large_lstm": "large LSTM (H from 200, N from 8)",
    "few_lstm": "LSTM with few sequences or units",
    "gru_vanilla": "GRU and vanilla",
    "unequal_lengths": "sequences of unequal lengths",
    "projection_float64": "LSTM with projection; float64",
    "single_steps": "single steps",
}
"""Cases that gain alike, as `group_of` tells them, and what a reader calls them."""

KEY = ("cpu", "date", "rnnkit", "threads")
FACTS = (*KEY, "commit", "torch", "onnxruntime", "peak_float32", "command", "note", "slower")
WORST = tuple(f"worst_{peer}_{part}" for peer in PEERS for part in ("case", "ratio"))
MEANS = tuple(f"{group}_{what}" for group in GROUPS for what in ("cases", *COLUMNS))
FIELDS = (*FACTS, *WORST, *MEANS)

Row = dict[str, str]


def kind_of(machine: str) -> str:
    """Return the kind of CPU of a report's header, by its family and model."""
    numbers = re.search(r"\(family (\d+), model (\d+)\)", machine)
    if numbers is None:
        raise report.ReportError(f"no family and model in the machine {machine!r}: name it with --kind")
    family, model = map(int, numbers.groups())
    for name, (known, models) in KINDS.items():
        if family == known and model in models:
            return name
    raise report.ReportError(f"unknown CPU, family {family}, model {model}: add it to KINDS in perf/cpus.py, or --kind")


def rows_of(path: str | Path, kind: str | None = None, note: str | None = None) -> list[Row]:
    """Return the rows of a report, one for each number of threads."""
    source = report.read(path)
    if "gpu" in source.header:
        raise report.ReportError(f"{path} is from a GPU, {source.header['gpu']}: only CPUs have a row")
    timed = [(_CASES[row["name"]], row) for row in source.rows if row["name"] in _CASES and row["seconds"]]
    compared = [(case, row) for case, row in timed if any(row[f"{peer}_ratio_median"] for peer in PEERS)]
    if not compared:
        raise report.ReportError(
            f"{path} has no case of the suite engines that was timed beside {' or '.join(PEERS.values())}"
        )
    missing = [key for key in ("machine", "date", "rnnkit", "commit", "command") if key not in source.header]
    if missing:
        raise report.ReportError(f"{path} has no {', '.join(missing)} in its header")
    kind = kind or kind_of(source.header["machine"])
    note = source.header.get("note", "") if note is None else note
    counts = sorted({int(row["threads"]) for _, row in compared})
    return [_summary(source.header, compared, kind, count, note) for count in counts]


_CASES = {row_name(case, each): case for case in CASES if not case.alone for each in case.passes if each != "serve"}


def _summary(header: dict[str, str], compared: list[tuple[Case, Row]], kind: str, threads: int, note: str) -> Row:
    own = [(case, row) for case, row in compared if int(row["threads"]) == threads]
    facts = {
        "cpu": kind,
        "date": header["date"][:10],
        "rnnkit": header["rnnkit"],
        "threads": str(threads),
        "commit": re.sub(r"^([0-9a-f]{7})[0-9a-f]*", r"\1", header["commit"]),  # with -dirty
        **{peer: header.get(peer, "").split("+")[0] for peer in PEERS},
        "peak_float32": header.get(f"fma_peak_float32_{threads}_threads", "").removesuffix(" GF/s"),
        "command": re.sub(r" --out[ =]\S+", "", header["command"]),  # a path of the machine
        "note": note,
    }
    return dict.fromkeys(FIELDS, "") | facts | _slowest([row for _, row in own]) | _means(own)


def _slowest(rows: list[Row]) -> Row:
    """Return the slowest case beside each peer, and all cases that are slower than a peer, slowest first."""
    slowest, slower = {}, []
    for peer in PEERS:
        found = sorted((float(ratio), row["name"]) for row in rows if (ratio := row[f"{peer}_ratio_median"]))
        if found:
            ratio, name = found[0]
            slowest |= {f"worst_{peer}_case": name, f"worst_{peer}_ratio": f"{ratio:.2f}"}
        slower += [(ratio, name, peer) for ratio, name in found if round(ratio, 2) < 1]
    return slowest | {"slower": "; ".join(f"{name} {peer} {ratio:.2f}" for ratio, name, peer in sorted(slower))}


def _means(own: list[tuple[Case, Row]]) -> Row:
    """Return the number of cases of each group, and the geometric means of their ratios."""
    means = {}
    for group in GROUPS:
        members = [(case, row) for case, row in own if group_of(case) == group]
        means[f"{group}_cases"] = str(len({case.name for case, _ in members}) or "")
        for column, (peer, is_training) in COLUMNS.items():
            rows = [row for _, row in members if row["name"].endswith("/train") == is_training]
            means[f"{group}_{column}"] = _mean([row[f"{peer}_ratio_median"] for row in rows])
    return means


def group_of(case: Case) -> str:
    """Return the group of a case, by its sizes."""
    if case.passes == ("step",):
        return "single_steps"
    if case.shortest is not None:
        return "unequal_lengths"
    if case.desc.projected or case.desc.dtype == "float64":
        return "projection_float64"
    if case.desc.mode != "lstm":
        return "gru_vanilla"
    return "large_lstm" if case.desc.hidden_size >= 200 and case.batch_size >= 8 else "few_lstm"


def _mean(ratios: list[str]) -> str:
    """The geometric mean of those that are measured; empty where none is."""
    logs = [log(float(ratio)) for ratio in ratios if ratio]
    return f"{exp(sum(logs) / len(logs)):.2f}" if logs else ""


def read(path: str | Path) -> list[Row]:
    """Return the rows of the file of CPUs; of a missing one, none."""
    if not Path(path).exists():
        return []
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if tuple(rows.fieldnames or ()) != FIELDS:
            raise report.ReportError(f"{path} must have the columns {','.join(FIELDS)}")
        return list(rows)


def write(path: str | Path, rows: Iterable[Row]) -> None:
    """Write the file of CPUs: newest first, then by kind, version and threads."""
    ordered = sorted(rows, key=lambda row: (row["cpu"], row["rnnkit"], int(row["threads"])))
    ordered.sort(key=lambda row: row["date"], reverse=True)
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(ordered)


def with_rows(known: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Return the rows with the new ones, which replace those of the same CPU, date, version and threads."""
    by_key = {tuple(row[name] for name in KEY): row for row in (*known, *new)}
    return list(by_key.values())
