"""What people look at while a run goes on: a progress bar, or plain lines where no terminal is, and a log."""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TextIO

from rnnkit import archive
from rnnkit.errors import message
from rnnkit.language_model.console import progress_bar
from rnnkit.language_model.training import Run, Step

COLUMNS = "step", "bytes", "seconds", "learning_rate", "gradient_norm", "train_bits", "validation_bits"
SMOOTHING = 0.98  # of the bits that are shown, from step to step
LINE_SECONDS = 10.0  # between plain lines


class Progress:
    """Says how far a run is: on a terminal in a bar, elsewhere in lines, quietly not at all.

    Parameters
    ----------
    run : Run
    tqdm : module or None
        None: nothing is shown.
    stream : TextIO
        A terminal or not.
    """

    def __init__(self, run: Run, tqdm: Any, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._run, self._tqdm, self._stream, self._clock = run, tqdm, stream or sys.stderr, clock
        self._bits: float | None = None
        self._validation: float | None = None
        self._bar: Any = None
        self._first: float | None = None  # seconds of the first step here, which compiles
        self._steps, self._spent = 0, 0.0  # in the others
        self._place = 0.0, 0.0  # seconds and progress of the run after the first step here
        self._next_line = clock()

    def __enter__(self) -> Progress:
        self._stack = ExitStack()
        if self._tqdm and self._stream.isatty():
            layout = "{percentage:3.0f}% {bar} {desc}"
            options = {"total": 1.0, "bar_format": layout, "file": self._stream, "initial": self._run.progress}
            self._bar = self._stack.enter_context(progress_bar(**options))
        return self

    def __exit__(self, *exception: object) -> None:
        if self._tqdm and not self._bar and exception[0] is None:
            self._line()
        self._stack.close()

    def update(self, step: Step) -> None:
        """Take notice of a step that was done."""
        run = self._run
        if self._first is None:
            self._first, self._place = step.seconds, (run.seconds, run.progress)
        else:
            self._steps, self._spent = self._steps + 1, self._spent + step.seconds
        self._bits = step.bits if self._bits is None else SMOOTHING * self._bits + (1 - SMOOTHING) * step.bits
        if self._bar:
            self._bar.set_description_str(self._words(), refresh=False)
            self._bar.update(run.progress - self._bar.n)
        elif self._tqdm and self._clock() >= self._next_line:
            self._line()
            self._next_line = self._clock() + LINE_SECONDS

    def validated(self, bits: float) -> None:
        """Take notice of the bits per byte on the validation text."""
        self._validation = bits

    def say(self, text: str) -> None:
        """Print a text on standard output, above the bar."""
        if self._bar:
            self._tqdm.tqdm.write(text)
        else:
            print(text, flush=True)

    def speed(self) -> str:
        """How fast it went, in words."""
        first = f"first step {self._first or 0.0:.1f} s, compilation included"
        return f"{self._rate:,.0f} bytes/s over {self._steps:,} steps; {first}" if self._steps else first

    @property
    def _rate(self) -> float:
        return self._steps * self._run.step_bytes / self._spent

    def _line(self) -> None:
        if self._bits is not None:
            print(f"{self._run.progress:4.0%}  step {self._run.step:,}  {self._words()}", file=self._stream, flush=True)

    def _words(self) -> str:
        words = [f"{self._bits:.3f} bits/byte"]
        if self._validation is not None:
            words.append(f"validation {self._validation:.3f}")
        if not self._steps:
            return ", ".join([*words, f"first step {self._first:.1f} s"])
        seconds, progress = self._place
        done = self._run.progress - progress
        left = (self._run.seconds - seconds) * (1 - self._run.progress) / done if done > 0 else 0.0
        bar = self._tqdm.tqdm
        return ", ".join([*words, f"{bar.format_sizeof(self._rate)}B/s", f"{bar.format_interval(left)} left"])


class Log:
    """A CSV file with a row for each of the intervals that the caller takes; nothing without a path.

    A run that goes on appends to the file, whose rows of steps that it has yet to do are dropped; a new one begins it
    anew. What is no log is never written over.
    """

    def __init__(self, path: str | None, step: int):
        self._path, self._bits, self._rows = path, [], []
        self._file: Any = None
        if path is not None:
            archive.check_target(path)
            found = read_log(path) if os.path.exists(path) and os.path.getsize(path) else []
            self._rows = [row for row in found if int(row["step"]) <= step]

    def __enter__(self) -> Log:
        if self._path is not None:
            self._file = open(self._path, "w", newline="")
            self._writer = csv.DictWriter(self._file, COLUMNS)
            self._writer.writeheader()
            self._writer.writerows(self._rows)
            self._file.flush()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file:
            self._file.close()

    def write(self, run: Run, step: Step, validation: float | None, due: bool) -> None:
        """Take notice of a step that was done; where a row is due, write one, with the mean since the last."""
        self._bits.append(step.bits)
        if not due or not self._file:
            return
        numbers = run.seconds, step.rate, step.norm, sum(self._bits) / len(self._bits), validation
        texts = ["" if number is None else f"{number:.6g}" for number in numbers]
        self._writer.writerow(dict(zip(COLUMNS, [run.step, run.step * run.step_bytes, *texts], strict=True)))
        self._file.flush()
        self._bits.clear()


def read_log(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """Return the rows of a log.

    Raises
    ------
    ValueError
        It is no log, or a row is damaged.
    """
    where = f"path {os.fspath(path)!r}"
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        try:
            names, rows = tuple(reader.fieldnames or ()), list(reader)
        except csv.Error as error:  # a line of a megabyte, say
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
