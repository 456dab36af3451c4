"""Cells that are named on the command line, in files and modules of the user."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

from rnnkit.cells import CellError
from rnnkit.common.console import CommandError
from rnnkit.errors import message

_MODULE = "rnnkit_check"  # of a file: its own name could be that of a package


PLACE = "FILE.py:CLASS or MODULE:CLASS, for example rnnkit.cells:JANET; or the name of an object of the class"
"""How a cell is named on the command line."""


def named_cell(command: str, argument: str, place: str) -> Any:
    """Return the cell of a place; raise an error of one line for whatever its module raises."""
    source, _, name = place.rpartition(":")
    if not source or not name:
        raise CommandError(message(command, argument, "be FILE.py:CLASS or MODULE:CLASS", place))
    module = _run(command, argument, source, _file if source.endswith(".py") else _module)
    if not hasattr(module, name):
        known = ", ".join(key for key, value in vars(module).items() if hasattr(value, "declaration")) or "no cell"
        raise CommandError(message(command, argument, f"name a class of {source}", name, f"it has {known}"))
    return getattr(module, name)


def _run(command: str, argument: str, source: str, load: Callable[[str], ModuleType]) -> ModuleType:
    try:
        return load(source)
    except (CellError, OSError):
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, (SyntaxError, ImportError)) else f" ({frame.filename}, line {frame.lineno})"
        got = f"{type(error).__name__}: {error}{where}"
        raise CommandError(message(command, argument, f"name a module that can be imported, {source}", got)) from error


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
