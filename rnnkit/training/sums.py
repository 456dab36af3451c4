"""Sums of arrays in float64, bit-identical on every CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rnnkit.common.arrays import Array, library_of
from rnnkit_kernels.machine.imports import imported

_LANES = 256  # parallel partial sums: a call with 450,000 numbers took 0.05 ms, with 64 lanes 0.08 ms


def total(values: Array) -> float:
    """Return the sum of an array's elements."""
    return _sum(values, squares=False)


def total_of_squares(values: Array) -> float:
    """Return the sum of the squares of an array's elements."""
    return _sum(values, squares=True)


def _sum(values: Array, squares: bool) -> float:
    if library_of(values) is not np:
        values = values.astype(np.float64)
        return float((values**2 if squares else values).sum())
    sum_of, contiguous = _on_cpu()
    return sum_of(contiguous(values).reshape(-1), np.empty(_LANES), squares)


@cache
def _on_cpu() -> tuple[Any, Any]:
    return imported("rnnkit_kernels.training").sum_of, imported("rnnkit.cpu.layer").contiguous
