"""Progress of a run: a bar on a terminal, otherwise plain lines, and a CSV log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from hashlib import sha256
from itertools import takewhile
from typing import Any, NamedTuple, TextIO

from rnnkit.common import archive
from rnnkit.common.console import CommandError, progress_bar
from rnnkit.common.training_log import COLUMNS, lines_of, read_log
from rnnkit.language_model.training import Run, Step

SMOOTHING = 0.98  # exponential smoothing of the displayed bits, per step
LINE_SECONDS = 10.0  # between two plain lines


class Progress:
    """Shows the progress of a run: in a bar on a terminal, otherwise in lines.

    Parameters
    ----------
    run : Run
    tqdm : module or None
        None: show nothing.
    stream : TextIO
        Where to show it, a terminal or not.
    """

    def __init__(self, run: Run, tqdm: Any, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._run, self._tqdm, self._stream, self._clock = run, tqdm, stream or sys.stderr, clock
        self._bits: float | None = None
        self._validation: float | None = None
        self._bar: Any = None
        self._first: float | None = None  # seconds of the first step in this process, including compilation
        self._steps, self._spent = 0, 0.0  # of the later steps, and their seconds
        self._place = 0.0, 0.0  # seconds and progress of the run after that first step
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
            with suppress(OSError):
                self._line()
        self._stack.close()

    def update(self, step: Step) -> None:
        """Show the results of a step."""
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
        """Show these bits per byte on the validation text from now on."""
        self._validation = bits

    def say(self, text: str) -> None:
        """Print a text on standard output, above the bar."""
        if self._bar:
            self._tqdm.tqdm.write(text)
        else:
            print(text, flush=True)

    def speed(self) -> str:
        """Describe the speed of the run."""
        first = f"first step {self._first or 0.0:.1f} s, including compilation"
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


class LogState(NamedTuple):
    """State of a log, saved with its run."""

    bits: float = 0.0  # sum over the steps since the last row
    steps: int = 0  # number of these steps
    digest: str | None = None  # of all rows, to recognise the log of this run


class Log:
    """A CSV file with a row per interval; without a path, nothing is written.

    A new run overwrites the log. A resumed run drops the rows of later steps and appends to the others. The file is
    unchanged until the first row is written. A file that is not a log, or that another run has open, is never changed.

    Parameters
    ----------
    path : str or None
    step : int
        Steps that the run has done.
    state : LogState
        State of the log after these steps.
    """

    def __init__(self, path: str | None, step: int, state: LogState):
        self._bits, self._steps, digest = state
        self._path, self._begin, self._rows = path, b"", b""  # header and rows that are not in the file yet
        self._digest = sha256()
        self._file: Any = None
        with ExitStack() as stack:
            if path is not None:
                self._file = stack.enter_context(open(path, "ab", buffering=0))
                if archive.try_lock(self._file, wait=False) is False:
                    raise CommandError(f"train: --log {path} is open in another run; give another --log")
                lines = _lines_until(path, step)
                self._digest.update(b"".join(lines[1:]))
                if lines and digest not in (None, self._digest.hexdigest()):
                    raise CommandError(f"train: --log {path} is not the log of the resumed run; give another --log")
                self._size = sum(map(len, lines))
                self._begin = b"" if lines else _line(COLUMNS)
            self._stack = stack.pop_all()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def state(self) -> LogState:
        """State of the log, to resume it in another process."""
        return LogState(self._bits, self._steps, self._digest.hexdigest() if self._file else None)

    def write(self, run: Run, step: Step, validation: float | None, due: bool) -> None:
        """Record a step; if a row is due, write it with the mean bits since the last row."""
        self._bits, self._steps = self._bits + step.bits, self._steps + 1
        if not due:
            return
        numbers = run.seconds, step.rate, step.norm, self._bits / self._steps, validation
        self._bits, self._steps = 0.0, 0
        if self._path is not None:
            texts = ["" if number is None else f"{number:.6g}" for number in numbers]
            self._rows += _line([run.step, run.step * run.step_bytes, *texts])
            with archive.naming(self._path):
                self._append()

    def _append(self) -> None:
        """Write all rows that are not in the file yet, or none if the disk is full: the next row tries again."""
        left, end = self._begin + self._rows, min(self._size, os.fstat(self._file.fileno()).st_size)
        size = end + len(left)
        try:
            self._file.truncate(end)
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(end)
            raise
        self._digest.update(self._rows)
        self._size, self._begin, self._rows = size, b"", b""


def _line(values: Iterable[Any]) -> bytes:
    return (",".join(map(str, values)) + "\r\n").encode()


def _lines_until(path: str, step: int) -> list[bytes]:
    """Return the lines of a log before the first row of a later step, for a resumed run."""
    if os.path.getsize(path):
        read_log(path)  # raises if it is not a log

    def is_done(line: bytes) -> bool:
        number = line.partition(b",")[0]
        return not number.isdigit() or int(number) <= step

    return list(takewhile(is_done, lines_of(path)))
