"""The norm of a gradient, and how it is kept down."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rnnkit.common.arrays import Array
from rnnkit.training import arguments
from rnnkit.training.sums import total_of_squares

_SMALLEST = np.finfo(np.float64).tiny / np.finfo(np.float64).eps**2  # above, squares that vanish are too small to count


def clip_gradient_norm(gradient: Array | Sequence[Array], limit: float) -> float:
    """Scale a gradient down, in place, to at most a Euclidean norm.

    Parameters
    ----------
    gradient : ndarray or sequence of ndarray, float32 or float64
        One array or several, of which the norm is taken together; C-contiguous, of one dtype, each in memory of its
        own.
    limit : float
        Above 0; infinity only measures.

    Returns
    -------
    float
        The norm before. It is the same on any number of threads, and no square in it overflows. Where it is NaN or
        infinite, because an element is, the gradient is left as it is: look at the norm before you take the step.

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
    else:  # a factor that would lose digits, or vanish
        root = math.sqrt(norm)
        values /= root
        values *= limit / root
