"""What a program is to the suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Program(NamedTuple):
    """The main use of a package that trains recurrent networks of PyTorch, as its documentation has it.

    The suite seeds the generators of PyTorch, NumPy and Python before each call. A program is sent to a process, so its
    functions are a module's own, or partials of such, and import the package when they are called.
    """

    name: str  # package/model, as patterns and the report have it
    needs: tuple[str, ...]  # modules that are installed with the package
    fit: Callable[[], Any]
    predict: Callable[[Any], Any]  # takes what `fit` returned, and gives an array, or several
    parameters: Callable[[], Any] | None = None  # of a shorter fit, compared where long ones are chaotic
