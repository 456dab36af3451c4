"""Imports of packages that take a second: no fork and no signal comes in the middle of one."""

import sys
import threading
from importlib import import_module

from .signals import held

importing = threading.RLock()
"""Held while Numba, CuPy or a module that needs them is imported. A fork waits for it."""

_whole = set()  # names of modules whose import has ended


def imported(name):
    """Return a module that imports Numba or CuPy on its first import.

    Signals wait until then: packages have a bare `except` around imports, and Cython drops exceptions in some, so that
    Ctrl-C could be lost, or leave half of a package.
    """
    if name in _whole and name in sys.modules:
        return sys.modules[name]
    with held(), importing:
        module = import_module(name)
    _whole.add(name)
    return module
