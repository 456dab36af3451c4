"""Tools of all commands: options, one-line errors, optional packages, and signals."""

from __future__ import annotations

import argparse
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from rnnkit.common.extras import to_install
from rnnkit.errors import BackendError, message

_PATIENCE = 0.1  # seconds until a signal is sent again: to clean up takes less, or is seen


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
    these signals, nothing changes. Python drops what a handler raises in a destructor or in a callback of C, Cython in
    some imports, packages in a bare `except`. So each signal, Ctrl-C too, is sent again until the command ends or
    cleans up. While a kernel is compiled or the engine imported, signals wait (`rnnkit_kernels.machine.signals`).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}
    came: SimpleQueue[int | None] = SimpleQueue()  # whose `put` may interrupt another one
    numbers, again, ended = list[int](), list[int](), list[bool]()  # signals that came; those sent again

    def leave(number: int, frame: Any) -> None:
        is_second = len(numbers) > len(again)
        numbers.append(number)
        if is_second and number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        came.put(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def print_others(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, (KeyboardInterrupt, SystemExit)):
            hook(dropped)

    hook, sys.unraisablehook = sys.unraisablehook, print_others
    main = threading.get_ident()
    watcher = threading.Thread(target=_send_again, args=(came, again, ended, main), daemon=True)
    watcher.start()
    try:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.getsignal(number)
                signal.signal(number, leave)
        yield
    finally:
        ended.append(True)
        came.put(None)
        for number, handler in before.items():
            if signal.getsignal(number) is leave:
                signal.signal(number, handler)
        sys.unraisablehook = hook


def _send_again(came: SimpleQueue[int | None], again: list[int], ended: list[bool], main: int) -> None:
    """Send each signal that came to the main thread again, until the command has ended, unless it is cleaning up."""
    while (number := came.get()) is not None:
        while not ended:
            time.sleep(_PATIENCE)
            if not ended and not _is_leaving(main):
                again.append(number)
                if hasattr(signal, "pthread_kill"):  # not on Windows
                    signal.pthread_kill(main, number)  # which wakes it, if it sleeps
                else:
                    signal.raise_signal(number)
                break


def _is_leaving(thread: int) -> bool:
    """Whether a thread runs code that cleans up because of a signal."""
    error: Any = sys._current_exceptions().get(thread)
    error = error[1] if isinstance(error, tuple) else error  # Python 3.11
    while error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt)):
        error = error.__context__
    return error is not None


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
