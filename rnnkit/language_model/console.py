"""Tools of the commands that read and write files, or train on several ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product

from rnnkit.common.console import CommandError


class CollectiveError(CommandError):
    """An error that all ranks raise together; the first rank prints it."""


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
