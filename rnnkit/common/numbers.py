"""Number helpers: conversion to float, the largest size, portable uniform random numbers."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from rnnkit.errors import message, wrong_type

MAX_SIZE = 2**31 - 1  # cuDNN's sizes are C ints


def real_number(function: str, argument: str, value: Any, expected: str = "a float") -> float:
    """Convert a real number to a float; raise TypeError or ValueError for anything else."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise wrong_type(function, argument, expected, value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(message(function, argument, "be in the range of float64", "a number beyond it")) from None


def uniform(rng: np.random.Generator, low: float, high: float, size: Any) -> np.ndarray:
    """Return uniform numbers in [low, high), bit-identical on every machine.

    Not `rng.uniform`: on ARM64 its compiler fuses the multiply-add, which changes the bits.
    """
    return rng.random(size) * (high - low) + low
