"""Ctrl-C while the command line is imported, which takes a second: the process ends without a traceback.

`rnnkit/__init__.py` imports this module first, because `python -m rnnkit` imports the package before its `__main__`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType


def _is_command_line() -> bool:
    """Return whether this process runs `rnnkit` or `python -m rnnkit`."""
    first = sys.argv[0] if getattr(sys, "argv", None) else ""
    if first == "-m":  # as long as Python looks for the module that it will run
        return not {"rnnkit", "-mrnnkit"}.isdisjoint(sys.orig_argv)
    return os.path.basename(first) in ("rnnkit", "rnnkit.exe")


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"rnnkit: interrupted\n")
    os._exit(128 + number)  # nothing is written yet; an exception could be lost in the code that is imported


def begin() -> None:
    """On the command line, let Ctrl-C end the process at once, unless it is ignored or handled already."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler and _is_command_line():
        signal.signal(signal.SIGINT, _leave)


def end() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, if `begin` has changed that."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


begin()
