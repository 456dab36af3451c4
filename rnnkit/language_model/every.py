"""Intervals: what is done every so many steps, minutes, or percent of a run."""

from __future__ import annotations

import argparse
import math
import re

from rnnkit.language_model.training import Run

UNITS = {"": ("steps", 1), "s": ("seconds", 1), "m": ("seconds", 60), "h": ("seconds", 3600), "%": ("percent", 1)}


def interval(text: str) -> str:
    """Return the text of an interval, as `Every` takes it; raise as that does."""
    return str(Every(text))


class Every:
    """An interval of a run, as "500" (steps), "30s", "10m", "2h" or "5%"; the same on every rank.

    Parameters
    ----------
    text : str

    Raises
    ------
    argparse.ArgumentTypeError
        It is none.
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

    def start(self, run: Run) -> Every:
        """Count from where the run is."""
        self._count = self._number(run)
        return self

    def due(self, run: Run) -> bool:
        """Whether another interval has ended since this was asked, or the run was started."""
        before, self._count = self._count, self._number(run)
        return self._count > before

    def _number(self, run: Run) -> int:
        done = {"steps": run.step, "seconds": run.seconds, "percent": 100 * run.progress}[self._unit]
        return int(done / self._amount + 1e-9)  # 0.3 is 3 times 0.1
