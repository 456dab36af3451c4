"""Dropout masks for layers outside of a network, for example a readout."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from rnnkit.call import checks
from rnnkit.call.steps import row_numbers
from rnnkit.errors import message
from rnnkit.training import arguments
from rnnkit_kernels.machine.imports import imported

_STREAM = 1 << 31  # networks use the streams below


def dropout_mask(
    shape: tuple[int, int, int], rate: float, seed: int | None = None, *, first_row: int = 0, dtype: str = "float32"
) -> np.ndarray:
    """Return the factors of inverted dropout (Srivastava et al., 2014) for a batch or a part of one.

    A factor depends only on the seed, the step, the row and the feature, as in the masks within a network. The masks of
    a network with the same seed are different ones.

    Parameters
    ----------
    shape : (T, N, F)
        Steps, rows and features.
    rate : float
        Probability of a 0, from 0 to 1.
    seed : int, optional
        The same seed gives the same mask; by default it is drawn.
    first_row : int
        The index of the first row in the whole batch.
    dtype : {"float32", "float64"}

    Returns
    -------
    ndarray (T, N, F)
        0, or 1/(1 - rate).

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.

    Examples
    --------
    >>> mask = dropout_mask((5, 4, 3), 0.5, seed=0)
    >>> sorted(set(mask.ravel().tolist()))
    [0.0, 2.0]
    >>> (dropout_mask((5, 2, 3), 0.5, seed=0, first_row=2) == mask[:, 2:]).all()
    np.True_
    """
    function = "dropout_mask"
    if not isinstance(shape, tuple) or len(shape) != 3:
        raise TypeError(message(function, "shape", "be a tuple (T, N, F)", repr(shape)))
    for name, size in zip("TNF", shape, strict=True):
        arguments.integer(function, f"{name} of shape", size, 0)
    rate = arguments.number(function, "rate", rate, "be in 0..1", lambda number: 0 <= number <= 1)
    seed = checks.seed(function, seed)
    first_row = checks.first_row(function, first_row, shape[1])
    arguments.real_dtype(function, dtype)
    return _sampled(shape, rate, secrets.randbits(64) if seed is None else seed, first_row, dtype)


def _sampled(shape: tuple[int, int, int], rate: float, seed: int, first_row: int, dtype: Any) -> np.ndarray:
    thread_pool, noise = imported("rnnkit_kernels.machine.thread_pool"), imported("rnnkit_kernels.noise")
    (steps, rows, features), mask = shape, np.empty(shape, dtype)
    count = steps * rows
    if mask.size:
        counter = noise.Counter(rows, first_row, 0, _STREAM, *noise.seed_words(seed))
        matrix = imported("rnnkit_kernels.machine.matrix").Matrix(mask.reshape(-1), row_numbers(count), 0, features)
        factor = noise.dropout_factor(rate, mask.dtype)
        thread_pool.run(noise.draw, mask.size, matrix, count, 0, features, counter, factor)
    return mask
