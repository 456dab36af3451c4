"""Intervals in steps, time, or percent of a run."""

from __future__ import annotations

import argparse
import math
import re
from typing import Any

UNITS = {"": ("steps", 1), "s": ("seconds", 1), "m": ("seconds", 60), "h": ("seconds", 3600), "%": ("percent", 1)}


def interval(text: str) -> str:
    """Check the text of an interval as `Every` does, and return it."""
    return str(Every(text))


class Every:
    """An interval of a `training.Run`, for example "500" (steps), "30s", "10m", "2h" or "5%"; the same on every rank.

    Parameters
    ----------
    text : str

    Raises
    ------
    argparse.ArgumentTypeError
        The text is not an interval.
    """

    def __init__(self, text: str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh%]?)", text)
        amount = float(found[1]) if found else 0.0
        if not 0 < amount < math.inf or (found[2] == "" and amount != int(amount)):
            raise argparse.ArgumentTypeError(f"must be like 500 (steps), 30s, 10m, 2h or 5%, and above 0, got {text}")
        self._unit, size = UNITS[found[2]]
        self._text, self._amount, self._count = text, amount * size, 0

    def __str__(self) -> str:
        return self._text

    def start(self, run: Any) -> Every:
        """Count from the current position of the run."""
        self._count = self._number(run)
        return self

    def due(self, run: Any) -> bool:
        """Return whether another interval has ended since the last call, or since `start`."""
        before, self._count = self._count, self._number(run)
        return self._count > before

    def _number(self, run: Any) -> int:
        done = {"steps": run.step, "seconds": run.seconds, "percent": 100 * run.progress}[self._unit]
        return int(done / self._amount + 1e-9)  # tolerates rounding, as in 0.3 / 0.1
