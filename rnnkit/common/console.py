"""Tools of all commands: options, one-line errors, optional packages, and signals."""

from __future__ import annotations

import argparse
import logging
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from rnnkit.common.extras import to_install
from rnnkit.errors import BackendError, message


class CommandError(Exception):
    """An error of the user. Its message is printed in one line, without a traceback."""

    status = 2  # of the process


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


USER_ERRORS = CommandError, OSError, ValueError, MemoryError, BackendError  # printed in one line


@contextmanager
def progress_bar(**options: Any) -> Iterator[Any]:
    """Return a tqdm progress bar; log messages appear above it."""
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    with tqdm(**options) as bar, logging_redirect_tqdm([logging.getLogger("rnnkit")]):
        yield bar


@contextmanager
def exiting_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit with status 128 + number, so that no temporary file is left behind.

    By default they end the process at once; a second one still does. In a thread, or if the program handles or ignores
    these signals, nothing changes. Python drops an exception that a handler raises in a destructor or in a callback of
    C: the signal is then sent again, Ctrl-C as well. Compilations let signals wait (`rnnkit_kernels.machine.signals`).
    """
    before: dict[int, Any] = {}
    left: list[int] = []  # the signal that has raised SystemExit
    hook = sys.unraisablehook

    def leave(number: int, frame: Any) -> None:
        restore()
        left.append(number)
        raise SystemExit(128 + number)

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is leave:
                signal.signal(number, handler)

    def send_again(dropped: Any) -> None:
        if issubclass(dropped.exc_type, SystemExit) and left:
            number = left.pop()
            for one in before:
                signal.signal(one, leave)
        elif issubclass(dropped.exc_type, KeyboardInterrupt):
            number = signal.SIGINT
        else:
            return hook(dropped)
        # After this hook, which drops it, too; to the main thread, which may sleep.
        to_main = hasattr(signal, "pthread_kill")  # not on Windows
        send = partial(signal.pthread_kill, threading.get_ident()) if to_main else signal.raise_signal
        threading.Timer(0.01, send, [number]).start()

    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread:
        sys.unraisablehook = send_again
        numbers = (getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP"))  # Windows has no SIGHUP
        for number in numbers:
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        restore()
        if in_main_thread:
            sys.unraisablehook = hook


def error_text(error: Exception) -> str:
    """Return the message of an error, with the name of its file if it has one."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def file_name(text: str) -> str:
    """Parse a file name."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"must name a file, got {text!r}")
    return text


def number(kind: type, low: float, high: float = math.inf, above: bool = False) -> Callable[[str], float]:
    """Return a parser of a finite number, or an int, from `low` (or above it) to `high`."""
    bounds = f"{'above' if above else 'at least'} {low}" + (f" and at most {high}" if math.isfinite(high) else "")

    def parse(text: str) -> float:
        value = kind(text)
        if not low <= value <= high or value == math.inf or (above and value == low):  # refuses NaN too
            raise argparse.ArgumentTypeError(f"must be {bounds}, got {text}")
        if value > sys.maxsize and kind is int:
            raise argparse.ArgumentTypeError(f"must be at most {sys.maxsize}, got {text}")
        return value

    parse.__name__ = kind.__name__  # argparse says "invalid int value" by it
    return parse


def add_option(group, name: str, kind: Callable, default: Any, text: str, metavar: str = "N") -> None:
    """Add an option. The parser of `train` has no defaults, so that it returns only given options."""
    text = text if default is None else f"{text} (default: {str(default).replace('%', '%%')})"
    given = {} if getattr(group, "argument_default", None) is argparse.SUPPRESS else {"default": default}
    group.add_argument(name, type=kind, metavar=metavar, help=text, **given)
