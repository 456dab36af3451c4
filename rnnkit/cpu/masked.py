"""Batches with skipped steps on NumPy arrays: the engine runs the other steps as a batch of their own.

So a mask costs what taking rows out and putting them back does, and no kernel of a cell knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.mask import Mask
from rnnkit.cpu.layer import contiguous
from rnnkit.cpu.stack import new_array
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.masked_rows import add_rows, list_masked, take_rows

_CODE: dict[Any, dict[Any, Any]] = {None: {}, np.dtype("float32"): {}, np.dtype("float64"): {}}
"""Machine code of the kernels, by the dtype of the arrays."""

Take = Callable[..., np.ndarray]
"""`Arena.take`, or what makes new arrays: fresh memory costs as much as the copy, 0.8 ms for 0.8 MB (AMD Zen 3)."""


class Rows(NamedTuple):
    """Lists of rows, as `list_masked` writes them."""

    sources: np.ndarray
    places: np.ndarray
    states: np.ndarray


def _rows_of(desc: RNNDescriptor, mask: Mask) -> Rows:
    if mask.rows is None:
        count, directions = mask.listed.size, desc.num_directions
        sizes = mask.longest * mask.batch_size, count, count * directions
        rows = Rows(*(np.empty(size, np.int64) for size in sizes))
        given = mask.listed.reshape(-1), mask.lengths, mask.counts, mask.longest, directions
        thread_pool.run(list_masked, 0, *given, *rows, code_cache=_CODE[None])
        mask.rows = rows
    return mask.rows


def taken(desc: RNNDescriptor, mask: Mask, x: np.ndarray, take: Take = new_array) -> np.ndarray:
    """Return the steps of x (T, N, I) that run, (longest, N, I); zeros beyond them."""
    target = take("masked_x", (mask.longest, *x.shape[1:]), x.dtype)
    return _filled(target, x, x[:0], _rows_of(desc, mask).sources, x.shape[-1])


def put_back(desc: RNNDescriptor, mask: Mask, dx: np.ndarray) -> np.ndarray:
    """Return the gradient of x, (T, N, I), from that of `taken`; zeros at the steps that are skipped."""
    target = np.empty((mask.seq_len, *dx.shape[1:]), dx.dtype)
    return _filled(target, dx, dx[:0], _rows_of(desc, mask).places, dx.shape[-1])


def outputs_of_all(desc: RNNDescriptor, mask: Mask, y: np.ndarray, hx: Any) -> np.ndarray:
    """Return y of all steps, (T, N, D*P), from that of the steps that run and hx: a skipped step repeats the one of
    before."""
    count, target = desc.num_directions, np.empty((mask.seq_len, *y.shape[1:]), y.dtype)
    initial = np.zeros((mask.batch_size, y.shape[-1]), y.dtype) if hx is None else hx[-count:].swapaxes(0, 1)
    return _filled(target, y, initial, _rows_of(desc, mask).states, desc.output_size)


def _filled(target: np.ndarray, source: np.ndarray, initial: np.ndarray, rows: np.ndarray, width: int) -> np.ndarray:
    arrays = target.reshape(-1), contiguous(source).reshape(-1), contiguous(initial).reshape(-1)
    thread_pool.run(take_rows, target.size, *arrays, rows, width, code_cache=_CODE[target.dtype])
    return target


def output_gradient(desc: RNNDescriptor, mask: Mask, dy: np.ndarray, take: Take) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient of y of the steps that run, (longest, N, D*P), and of hx of the last layer, (D, N, P), from
    that of all steps."""
    count, size = desc.num_directions, desc.output_size
    target = take("masked_dy", (mask.longest, *dy.shape[1:]), dy.dtype)
    initial = np.zeros((mask.batch_size, count, size), dy.dtype)
    target[...] = 0
    arrays = target.reshape(-1), contiguous(dy).reshape(-1), initial.reshape(-1)
    sizes = mask.seq_len, mask.batch_size * count, size
    thread_pool.run(add_rows, dy.size, *arrays, _rows_of(desc, mask).states, *sizes, code_cache=_CODE[dy.dtype])
    return target, initial.swapaxes(0, 1)
