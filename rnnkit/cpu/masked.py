"""Batches with skipped steps on NumPy arrays: the engine runs the other steps as a batch of their own.

So a mask costs what taking rows out and putting them back does, and no kernel of a cell knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rnnkit.call.mask import Mask
from rnnkit.call.options import CallOptions
from rnnkit.cpu.layer import contiguous
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.masked_rows import add_rows, take_rows


def infer(
    desc: RNNDescriptor,
    x: np.ndarray,
    hx: Any,
    options: CallOptions,
    run: Callable[[np.ndarray, CallOptions], tuple[Any, Any, Any]],
) -> tuple[Any, Any, Any]:
    """Return y, hy and cy of a batch from those that `run` returns for the steps that are not skipped."""
    y, hy, cy = run(take(options.mask, x), options._replace(mask=None))
    return outputs_of_all(desc, options.mask, y, hx), hy, cy


def take(mask: Mask, x: np.ndarray) -> np.ndarray:
    """Return the steps of x (T, N, I) that run, (max_count, N, I); zeros beyond them."""
    return _rows(mask.sources, x, x[:0], x.shape[-1])


def put_back(mask: Mask, dx: np.ndarray) -> np.ndarray:
    """Return the gradient of x, (T, N, I), from that of `take`; zeros at the steps that are skipped."""
    return _rows(mask.places, dx, dx[:0], dx.shape[-1])


def outputs_of_all(desc: RNNDescriptor, mask: Mask, y: np.ndarray, hx: Any) -> np.ndarray:
    """Return y of all steps, (T, N, D*P), from that of the steps that run and hx: a skipped step repeats the one of
    before."""
    count, shape = desc.num_directions, (mask.seq_len, *y.shape[1:])
    initial = np.zeros((count, mask.batch_size, desc.output_size), y.dtype) if hx is None else hx[-count:]
    rows = mask.states(tuple(range(count)))
    return _rows(rows, y, initial.swapaxes(0, 1), desc.output_size).reshape(shape)


def output_gradient(desc: RNNDescriptor, mask: Mask, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient of y of the steps that run, (max_count, N, D*P), and of hx of the last layer, (D, N, P), from
    that of all steps."""
    count, size = desc.num_directions, desc.output_size
    target, initial = (
        np.zeros((mask.max_count, *dy.shape[1:]), dy.dtype),
        np.zeros((mask.batch_size, count, size), dy.dtype),
    )
    arrays = target.reshape(-1), contiguous(dy).reshape(-1), initial.reshape(-1)
    rows = mask.states(tuple(range(count))).reshape(-1)
    thread_pool.run(add_rows, dy.size, *arrays, rows, mask.seq_len, mask.batch_size * count, size)
    return target, initial.swapaxes(0, 1)


def _rows(numbers: np.ndarray, source: np.ndarray, initial: np.ndarray, width: int) -> np.ndarray:
    """Return rows of `source` and of `initial` behind it, (*numbers.shape, width); zeros for negative numbers."""
    target = np.empty((*numbers.shape, width), source.dtype)
    arrays = target.reshape(-1), contiguous(source).reshape(-1), contiguous(initial).reshape(-1)
    thread_pool.run(take_rows, target.size, *arrays, numbers.reshape(-1), width)
    return target
