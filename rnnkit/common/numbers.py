"""Numbers that a user gives, as floats; the largest size; numbers that are drawn."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from rnnkit.errors import message, wrong_type

MAX_SIZE = 2**31 - 1  # cuDNN's sizes are of C's int


def real_number(function: str, argument: str, value: Any, expected: str = "a float") -> float:
    """Return a number as a float; raise what is wrong with the argument."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise wrong_type(function, argument, expected, value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(message(function, argument, "be in the range of float64", "a number beyond it")) from None


def uniform(rng: np.random.Generator, low: float, high: float, size: Any) -> np.ndarray:
    """Return numbers in [low, high), with the same bits on every machine.

    `rng.uniform` has these bits only where its compiler fuses no multiply-add: on ARM64 it does.
    """
    return rng.random(size) * (high - low) + low
