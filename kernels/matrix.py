"""Rows of a flat array that are listed by number: how every kernel is told what to read and what to write."""

from typing import NamedTuple

import numpy as np

from .jit import kernel


class Matrix(NamedTuple):
    """Rows of a flat array: row number r stands at data[start + rows[r]*stride:]."""

    data: np.ndarray
    rows: np.ndarray
    start: int
    stride: int


@kernel
def offset(matrix, row):
    """Where the row at position `row` of the row list starts."""
    return matrix.start + matrix.rows[row] * matrix.stride
