"""What all commands share: errors of one line, optional packages, and an end on a signal."""

from __future__ import annotations

import argparse
import logging
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from types import ModuleType
from typing import Any

from rnnkit.common.extras import to_install
from rnnkit.errors import BackendError, message


class CommandError(Exception):
    """What was asked for cannot be done; the message says why and what would help."""


class Agreed(CommandError):
    """All ranks raise it alike: the first one says why."""


class Interrupted(Exception):
    """A signal has ended the run, and all that was done is saved."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Parser(argparse.ArgumentParser):
    """One line for an error, without the usage."""

    command = ""  # whose options these are, where the name is another's

    def error(self, message: str) -> None:
        self.exit(2, f"{self.prog}: {message}; see {self.command or self.prog} --help\n")


def show_what_is_logged() -> None:
    """On stderr: that a first call compiles, say."""
    logger = logging.getLogger("rnnkit")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("rnnkit: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def extra(command: str, name: str) -> ModuleType:
    """Import what an option or a command needs beside the core."""
    try:
        return import_module(name)
    except ImportError:
        package = name.split(".")[0]
        raise CommandError(message(command, package, "be installed", "none", to_install(package))) from None


Named = tuple[str, str | os.PathLike[str]]  # an argument, and the file that it names


def keep_apart(command: str, written: Iterable[Named], read: Iterable[Named]) -> None:
    """Refuse to write a file that is read, or that is another one that is written."""
    for (name, path), (other, taken) in product(written, read):
        if _same_file(path, taken):
            raise CommandError(f"{command}: {name} must name a file of its own, got {path}, as {other} does")


def _same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is yet to be made
        return os.path.realpath(one) == os.path.realpath(other)


REFUSALS = CommandError, OSError, ValueError, MemoryError, BackendError  # what a user is told in a line


@contextmanager
def progress_bar(**options: Any) -> Iterator[Any]:
    """Give a bar of tqdm, above which is written what is logged meanwhile."""
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    with tqdm(**options) as bar, logging_redirect_tqdm([logging.getLogger("rnnkit")]):
        yield bar


class Signals:
    """Whether SIGINT or SIGTERM has come; `number` says which."""

    number: int | None = None


@contextmanager
def noticed_signals() -> Iterator[Signals]:
    """Give what says whether Ctrl-C or SIGTERM has come; a second one acts at once.

    One that is ignored stays so, as a shell wants it of a script's background job.
    """
    found, before = Signals(), {}

    def note(number, frame):
        found.number = number
        restore()

    def restore():
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None is a handler that is not of Python
            before[number] = signal.signal(number, note)
    try:
        yield found
    finally:
        restore()


def why(error: Exception) -> str:
    """Return what an error says, with the name of the file where there is one."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
