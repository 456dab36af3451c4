"""The gradient of an embedding, whose lookup is `embedding[index]`."""

from __future__ import annotations

import numpy as np

from rnnkit.call.checks import integers, within
from rnnkit.errors import message
from rnnkit.training import arguments


def add_rows(sums: np.ndarray, index: np.ndarray, rows: np.ndarray) -> None:
    """Compute sums[index[i]] += rows[i] in the order of i, bit-identical with any number of threads.

    Parameters
    ----------
    sums : ndarray (K, I), float32 or float64
        The gradient by the embedding, C-contiguous.
    index : ndarray (n,) of int
        The row of the embedding that was looked up, 0..K-1.
    rows : ndarray (n, I)
        The gradient by each result of the lookup, with the dtype of `sums`.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong. Nothing is written then.
    """
    function = "add_rows"
    size = arguments.last_size(function, "sums", sums, "input_size")
    arguments.contiguous(function, "sums", sums)
    arguments.writeable(function, "sums", sums)
    found = integers(function, "index", index)
    if sums.ndim != 2 or found.ndim != 1:
        name, array, shape = ("sums", sums, "(K, I)") if sums.ndim != 2 else ("index", found, "(n,)")
        raise ValueError(message(function, name, f"have shape {shape}", array.shape))
    within(function, "index", found, len(sums) - 1, f"{len(sums) - 1}")
    arguments.check_like(function, "rows", rows, sums, "sums", (found.size, size), "to match index and sums")
    arguments.separate(function, "sums", sums, rows=rows)
    from rnnkit.cpu import dense  # on the first call: it imports Numba

    dense.add_rows(sums, found.astype(np.int64, copy=False), rows)
