"""Clipping of a gradient's norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rnnkit.common.arrays import Array
from rnnkit.training import arguments
from rnnkit.training.sums import total_of_squares

_SMALLEST = np.finfo(np.float64).tiny / np.finfo(np.float64).eps ** 2  # above it, underflowed squares are negligible


def clip_gradient_norm(gradient: Array | Sequence[Array], limit: float) -> float:
    """Scale a gradient down, in place, to a maximum Euclidean norm.

    Parameters
    ----------
    gradient : ndarray or sequence of ndarray, float32 or float64
        One array, or several with one norm for all together. C-contiguous, of one dtype, not overlapping.
    limit : float
        The maximum norm, above 0; with infinity the gradient is only measured.

    Returns
    -------
    float
        The norm before clipping. It does not depend on the number of threads, and it does not overflow. If an element
        is NaN or infinite, so is the norm, and the gradient is left unchanged: check the norm before you step.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> gradient = np.array([3.0, -4.0])
    >>> clip_gradient_norm(gradient, 1.0), gradient.tolist()
    (5.0, [0.6000000000000001, -0.8])
    >>> clip_gradient_norm(gradient, 2.0), gradient.tolist()
    (1.0, [0.6000000000000001, -0.8])
    """
    function = "clip_gradient_norm"
    limit = arguments.number(function, "limit", limit, "be above 0", lambda value: value > 0)
    parts = [array.reshape(-1) for _, array in arguments.outputs(function, "gradient", gradient)]
    norm = math.hypot(*map(_norm, parts))
    if limit < norm < math.inf:
        for part in parts:
            _scale(part, limit, norm)
    return norm


def _norm(values: Array) -> float:
    total = total_of_squares(values)
    if _SMALLEST < total < math.inf:
        return math.sqrt(total)
    largest = float(abs(values).max()) if values.size else 0.0
    if largest == 0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(total_of_squares(values / largest))


def _scale(values: Array, limit: float, norm: float) -> None:
    if limit / norm >= np.finfo(values.dtype).tiny:
        values *= limit / norm
    else:  # two factors, because their product would lose digits or underflow
        root = math.sqrt(norm)
        values /= root
        values *= limit / root
