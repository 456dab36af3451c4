"""`rnnkit check`: `rnnkit.check_cell` for a cell in a file or a module."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import rnnkit
from rnnkit.cells import CellError
from rnnkit.common.console import CommandError, Parser, add_option, number
from rnnkit.errors import message

_MODULE = "rnnkit_check"  # of a file: its own name could be that of a package


class WrongCell(CommandError):
    """The cell has a fault."""

    status = 1


def add_options(parser: Parser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Check the gradients of a cell against finite differences, and its values against its equations, as "
        "rnnkit.check_cell does. The exit status is 0 if the cell is right, 1 if it is wrong, 2 for other errors."
    )
    parser.set_defaults(run=check)
    place = "FILE.py:CLASS or MODULE:CLASS, for example rnnkit.cells:JANET; or the name of an object of the class"
    parser.add_argument("cell", metavar="CELL", help=place)
    add_option(parser, "--seed", number(int, 0), 0, "seed of the random inputs")


def check(args: argparse.Namespace) -> None:
    """Print the comparison of each gradient of a cell; raise if one is wrong."""
    try:
        cell = _found(args.cell)
        report = rnnkit.check_cell(cell, args.seed)
    except CellError as error:
        raise WrongCell(str(error)) from error
    except TypeError as error:  # not a cell, or one whose parameters have no defaults
        raise CommandError(str(error)) from error
    print(f"cell      {args.cell}: gradients agree with finite differences, values with the equations")
    print(report)


def _found(place: str) -> Any:
    """Return the cell of a place."""
    source, _, name = place.rpartition(":")
    if not source or not name:
        raise CommandError(message("check", "CELL", "be FILE.py:CLASS or MODULE:CLASS", place))
    module = _run(source, _file if source.endswith(".py") else _module)
    if not hasattr(module, name):
        known = ", ".join(key for key, value in vars(module).items() if hasattr(value, "declaration")) or "no cell"
        raise CommandError(message("check", "CELL", f"name a class of {source}", name, f"it has {known}"))
    return getattr(module, name)


def _run(source: str, load: Callable[[str], ModuleType]) -> ModuleType:
    """Return the module; raise an error of one line for whatever its program raises."""
    try:
        return load(source)
    except (CellError, OSError):
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, (SyntaxError, ImportError)) else f" ({frame.filename}, line {frame.lineno})"
        got = f"{type(error).__name__}: {error}{where}"
        raise CommandError(message("check", "CELL", f"name a module that can be imported, {source}", got)) from error


def _module(source: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    return import_module(source)


def _file(source: str) -> ModuleType:
    with open(source, "rb"):  # raises if it cannot be read
        pass
    sys.path.insert(0, os.path.dirname(os.path.abspath(source)))  # as `python FILE` does
    spec = spec_from_file_location(_MODULE, source)
    assert spec and spec.loader
    module = sys.modules[_MODULE] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
