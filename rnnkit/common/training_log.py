"""The log of a training run, as `rnnkit train --log` writes it: CSV with a row per interval."""

from __future__ import annotations

import csv
import io
import os

from rnnkit.common import archive
from rnnkit.errors import message

COLUMNS = "step", "bytes", "seconds", "learning_rate", "gradient_norm", "train_bits", "validation_bits"


def lines_of(path: str | os.PathLike[str]) -> list[bytes]:
    """Return the lines of a log without an incomplete last one, left by a process that was killed."""
    with archive.naming(path), open(path, "rb") as file:
        return [line for line in file.read().splitlines(keepends=True) if line.endswith((b"\n", b"\r"))]


def read_log(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """Return the rows of a log.

    Raises
    ------
    ValueError
        The file is not a log, or a row is damaged.
    """
    where = f"path {os.fspath(path)!r}"
    text = b"".join(lines_of(path)).decode(errors="replace")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        names, rows = tuple(reader.fieldnames or ()), list(reader)
    except csv.Error as error:  # for example a line of a megabyte
        raise ValueError(message("read_log", where, "be a CSV file", error)) from error
    if names != COLUMNS:
        got = ",".join(names)[:200] or "nothing"
        raise ValueError(message("read_log", where, f"begin with {','.join(COLUMNS)}", got))
    for number, row in enumerate(rows, 2):
        if not _is_row(row):
            got = f"{list(row.values())} in line {number}"[:400]
            raise ValueError(message("read_log", where, "have a number in each column", got))
    return rows


def _is_row(row: dict[str, str]) -> bool:
    try:
        return int(row["step"]) > 0 and all(value == "" or isinstance(float(value), float) for value in row.values())
    except (TypeError, ValueError):
        return False
