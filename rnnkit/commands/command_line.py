"""The command line: its parser, and its exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import TextIO

import rnnkit
from rnnkit.commands.table import COMMANDS, GROUPS
from rnnkit.common import startup
from rnnkit.common.console import (
    USER_ERRORS,
    CommandError,
    Interrupted,
    Parser,
    error_text,
    exiting_signals,
    log_to_stderr,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 or 2 for an error, or 128 plus the number of a signal.

    SystemExit is raised for wrong arguments, --help and --version, and by SIGTERM and SIGHUP.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        sys.stderr = sys.stderr or open(os.devnull, "w")  # None if the shell has closed it
        try:
            command = next((one for one in given if not one.startswith("-")), None)
            args = build_parser([command]).parse_args(given)
        finally:
            startup.end()
        log_to_stderr()
        if sys.stdout is None:
            raise CommandError("standard output must be open, got a closed one; redirect it to /dev/null")
        with exiting_signals():
            args.run(args)
            sys.stdout.flush()
    except BrokenPipeError:  # nobody reads the output any more
        _drop_unwritable(sys.stdout)
        return 1
    except KeyboardInterrupt:
        exec("")  # Python ends by the signal if interrupted code was run by `exec`, as Numba's is: now it forgets that
        print("rnnkit: interrupted", file=sys.stderr)
        return 130
    except Interrupted as end:
        return 128 + end.number
    except USER_ERRORS as error:
        with suppress(OSError):  # a full disk
            print(f"rnnkit: {error_text(error)}", file=sys.stderr)
        _drop_unwritable(sys.stdout)
        return error.status if isinstance(error, CommandError) else 2
    finally:  # what is said on stderr does not decide the status
        _drop_unwritable(sys.stderr)
    return 0


def _drop_unwritable(stream: TextIO | None) -> None:
    """Drop what is in a buffer and cannot be written: it must not raise again when Python exits."""
    if stream is not None:
        try:
            stream.flush()
        except OSError:
            with suppress(AttributeError, OSError):  # a caller's stream without a file
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def build_parser(wanted: Container[str | None] = COMMANDS) -> Parser:
    """Return the parser of all commands. Only those that are wanted are imported, and have options."""
    lines = [
        line
        for title, commands in GROUPS.items()
        for line in ["", f"{title}:", *(f"    {one.name:12}{one.about}" for one in commands)]
    ]
    parser = Parser(
        prog="rnnkit", usage="rnnkit [-h] [--version] COMMAND ...", formatter_class=argparse.RawTextHelpFormatter,
        description="The commands of rnnkit. rnnkit COMMAND --help shows the options of one.",
        epilog="\n".join(lines[1:]),
    )  # fmt: skip
    parser.set_defaults(run=lambda args: parser.print_help())
    parser.add_argument("--version", action="version", version=f"rnnkit {rnnkit.__version__}")
    adders = parser.add_subparsers(metavar="COMMAND", prog="rnnkit", help=argparse.SUPPRESS)
    for command in COMMANDS.values():
        own = adders.add_parser(command.name)
        if command.name in wanted:
            command.add_options(own)
    return parser
