"""Tools of all commands: one-line errors, optional packages, and signals."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from types import ModuleType
from typing import Any

from rnnkit.common.extras import to_install
from rnnkit.errors import BackendError, message


class CommandError(Exception):
    """An error of the user. Its message is printed in one line, without a traceback."""


class CollectiveError(CommandError):
    """An error that all ranks raise together; the first rank prints it."""


class Interrupted(Exception):
    """A signal has interrupted the run, and the run is saved."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Parser(argparse.ArgumentParser):
    """A parser that prints an error in one line, without the usage."""

    command = ""  # whose --help a message names, if not that of `prog`

    def error(self, message: str) -> None:
        self.exit(2, f"{self.prog}: {message}; see {self.command or self.prog} --help\n")


class _StderrHandler(logging.StreamHandler):
    """Writes to what `sys.stderr` is at that moment: a program that calls `main` twice may have replaced it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


def log_to_stderr() -> None:
    """Print log messages on stderr, for example that a first call compiles."""
    logger = logging.getLogger("rnnkit")
    if not logger.handlers:
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("rnnkit: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def optional_import(command: str, name: str) -> ModuleType:
    """Import a package that only an option or a command needs."""
    try:
        return import_module(name)
    except ImportError:
        package = name.split(".")[0]
        raise CommandError(message(command, package, "be installed", "none", to_install(package))) from None


Named = tuple[str, str | os.PathLike[str]]  # an argument, and the file that it names


def check_distinct_files(command: str, written: Iterable[Named], read: Iterable[Named]) -> None:
    """Raise if a file to write is also read, or is another file to write."""
    for (name, path), (other, taken) in product(written, read):
        if _same_file(path, taken):
            raise CommandError(f"{command}: {name} must name a file of its own, got {path}, the same file as {other}")


def _same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist yet
        return os.path.realpath(one) == os.path.realpath(other)


USER_ERRORS = CommandError, OSError, ValueError, MemoryError, BackendError  # printed in one line


@contextmanager
def progress_bar(**options: Any) -> Iterator[Any]:
    """Return a tqdm progress bar; log messages appear above it."""
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    with tqdm(**options) as bar, logging_redirect_tqdm([logging.getLogger("rnnkit")]):
        yield bar


class Signals:
    """The number of the SIGINT or SIGTERM that was received, if any."""

    number: int | None = None


@contextmanager
def deferred_signals() -> Iterator[Signals]:
    """Record Ctrl-C or SIGTERM instead of ending at once; a second one acts as usual.

    A signal that is ignored stays ignored, as for a background job of a shell script.
    """
    found, before = Signals(), {}

    def note(number, frame):
        found.number = number
        restore()

    def restore():
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: a handler not set from Python
            before[number] = signal.signal(number, note)
    try:
        yield found
    finally:
        restore()


@contextmanager
def exiting_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit with status 128 + number, so that no temporary file is left behind.

    By default they end the process at once; a second one still does. In a thread, or if the program handles or ignores
    these signals, nothing changes.
    """
    before: dict[int, Any] = {}

    def leave(number: int, frame: Any) -> None:
        restore()
        raise SystemExit(128 + number)

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is leave:
                signal.signal(number, handler)

    if threading.current_thread() is threading.main_thread():
        numbers = (getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP"))  # Windows has no SIGHUP
        for number in numbers:
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        restore()


def error_text(error: Exception) -> str:
    """Return the message of an error, with the name of its file if it has one."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
