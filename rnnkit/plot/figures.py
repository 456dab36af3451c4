"""Figures and axes in the style of this package: dark on white, whatever the style of the program is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rnnkit.common.extras import to_install
from rnnkit.errors import message

DPI = 120  # pixels an inch
GRID, BLANK = "#dddddd", "#d9d9d9"  # lines behind what is drawn; where there is nothing


@contextmanager
def new_figure(function: str, width: float, height: float) -> Iterator[Any]:
    """Return an empty figure of this size in inches; what is drawn in the context has the package's style.

    Raises
    ------
    ImportError
        Matplotlib is not installed.
    """
    try:
        figures, style = map(import_module, ("matplotlib.figure", "matplotlib.style"))
    except ImportError:
        where = "the package matplotlib"
        raise ImportError(message(function, where, "be installed", "none", to_install("matplotlib"))) from None
    with style.context("default"):
        figure = figures.Figure((width, height), DPI, facecolor="white", layout="constrained")
        yield figure


def whole_numbers(axis: Any, most: int = 8) -> None:
    """Let an axis have ticks at whole numbers alone."""
    ticker = import_module("matplotlib.ticker")
    axis.set_major_locator(ticker.MaxNLocator(most, integer=True, min_n_ticks=1))
