"""Optional packages, imported when a file is read or written."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from rnnkit.common.extras import to_install
from rnnkit.errors import message


def package(function: str, name: str) -> ModuleType:
    """Import a package, or raise ImportError in the name of a function."""
    try:
        return import_module(name)
    except ImportError:
        raise ImportError(message(function, f"the package {name}", "be installed", "none", to_install(name))) from None
