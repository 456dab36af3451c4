"""Pooling over time, and its gradient."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rnnkit.common.arrays import sum_of_steps
from rnnkit.training import last_output, last_output_backward

POOLINGS = ("last", "mean", "max")


class Pooled(NamedTuple):
    """`values` (N, D*P), a copy, and for "max" the `steps` that they are from, for the gradient."""

    values: np.ndarray
    steps: np.ndarray | None = None


def pool(kind: str, y: np.ndarray, hy: np.ndarray, lengths: np.ndarray, num_directions: int) -> Pooled:
    """Return one vector per sequence.

    Parameters
    ----------
    kind : {"last", "mean", "max"}
        The last states of the top layer, or the mean or the maximum of the outputs over the valid steps. Of equal
        outputs the first is the maximum.
    y : ndarray (T, N, D*P)
        0 in padding.
    hy : ndarray (L*D, N, P)
    lengths : ndarray (N,)
        At least 1.
    num_directions : int
    """
    if kind == "last":
        return Pooled(last_output(hy, num_directions))
    if kind == "mean":
        return Pooled(sum_of_steps(y) / lengths[:, np.newaxis].astype(y.dtype))
    padding = np.arange(len(y))[:, np.newaxis] >= lengths
    if padding.any():
        y = np.where(padding[:, :, np.newaxis], y.dtype.type(-np.inf), y)
    steps = y.argmax(axis=0)[np.newaxis]
    return Pooled(np.take_along_axis(y, steps, axis=0)[0], steps)


def pool_backward(
    kind: str,
    dvalues: np.ndarray,
    pooled: Pooled,
    seq_len: int,
    lengths: np.ndarray,
    num_layers: int,
    num_directions: int,
) -> dict[str, np.ndarray]:
    """Return the gradient as an argument of backward: dhy, or dy, whose padding is ignored."""
    if kind == "last":
        return {"dhy": last_output_backward(dvalues, num_layers, num_directions)}
    if kind == "mean":
        share = dvalues / lengths[:, np.newaxis].astype(dvalues.dtype)
        return {"dy": np.repeat(share[np.newaxis], seq_len, axis=0)}
    dy = np.zeros((seq_len, *dvalues.shape), dvalues.dtype)
    np.put_along_axis(dy, pooled.steps, dvalues[np.newaxis], axis=0)
    return {"dy": dy}
