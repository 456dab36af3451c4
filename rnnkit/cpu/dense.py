"""A dense layer on NumPy arrays: scratch of its kernels, and their calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.pool import IDLE
from rnnkit.call.steps import row_numbers
from rnnkit.cpu.layer import contiguous
from rnnkit_kernels import dense, weight_gradient
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.gemm import depth_block
from rnnkit_kernels.machine.in_place import MAX_ROWS_IN_PLACE
from rnnkit_kernels.machine.packing import padded, panel_size
from rnnkit_kernels.machine.tiles import ensure_in_place_tiles

_SCRATCH = "weights", "x", "scratch", "zeros"
_sites: dict[np.dtype, dict] = {np.dtype(name): {} for name in ("float32", "float64")}  # of `thread_pool.run`


def _reads_in_place(rows: int, work: int) -> bool:
    """Return whether weights are read in place: for few rows, this is faster than packing them."""
    return rows <= MAX_ROWS_IN_PLACE or work <= thread_pool.SINGLE_THREAD_WORK


@contextmanager
def _borrowed() -> Iterator[Arena]:
    """Borrow an idle arena for the duration of a call."""
    shelf = IDLE.shelf("dense")
    arena = shelf.take() or Arena()
    try:
        yield arena
    finally:
        shelf.give_back(arena)


@lru_cache  # keyed by dtype and size: an entry is small
def _in_place(dtype: np.dtype, units: int) -> tuple[np.ndarray, int]:
    """Return no panels, and the size of the bias's buffer, for a call that reads the weights in place."""
    ensure_in_place_tiles("columns", dtype.itemsize)
    return np.empty(0, dtype), padded(units, dtype.itemsize)


def forward(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Write y (rows, C) = x (rows, I) times weights plus bias; w holds weights, then bias."""
    (rows, depth), units, dtype = x.shape, y.shape[1], w.dtype
    if not rows:
        return
    w, x, work = contiguous(w), contiguous(x), rows * depth * units
    if _reads_in_place(rows, work):
        panels, size = _in_place(dtype, units)
        _forward(work, w, x, y, panels, np.empty(size, dtype))
        return
    with _borrowed() as arena:
        panels = arena.take("panels", (panel_size(depth, units, 1, dtype.itemsize),), dtype)
        _forward(work, w, x, y, panels, arena.take("bias", (padded(units, dtype.itemsize),), dtype))


def _forward(work: int, w: np.ndarray, x: np.ndarray, y: np.ndarray, panels: np.ndarray, bias: np.ndarray) -> None:
    (rows, depth), units = x.shape, y.shape[1]
    numbers = row_numbers(max(rows, units))
    thread_pool.run(
        dense.forward, work, y.reshape(-1), x.reshape(-1), w, panels, bias, numbers, rows, units, depth,
        code_cache=_sites[w.dtype],
    )  # fmt: skip


def backward(w: np.ndarray, x: np.ndarray, dy: np.ndarray, dx: np.ndarray, dw: np.ndarray) -> None:
    """Write dx (rows, I), and add the gradient of w to dw."""
    (rows, depth), units, itemsize = x.shape, dy.shape[1], w.dtype.itemsize
    if not rows:
        return
    work, block = 2 * rows * depth * units, min(depth_block(itemsize), rows)
    threads = 1 if work <= thread_pool.SINGLE_THREAD_WORK else thread_pool.max_threads()
    sizes = weight_gradient.scratch_size(units, threads, block), padded(depth, itemsize)
    arrays = dx.reshape(-1), dw, *(contiguous(array).reshape(-1) for array in (dy, x, w))
    if _reads_in_place(rows, work):
        ensure_in_place_tiles("rows", itemsize)
        none = np.empty(0, w.dtype)
        _backward(work, *arrays, none, none, *(np.empty(size, w.dtype) for size in sizes), rows, units, depth)
        return
    sizes = panel_size(units, depth, 1, itemsize), panel_size(block, depth, 1, itemsize), *sizes
    with _borrowed() as arena:
        scratch = (arena.take(name, (size,), w.dtype) for name, size in zip(_SCRATCH, sizes, strict=True))
        _backward(work, *arrays, *scratch, rows, units, depth)


def _backward(work: int, dx: np.ndarray, *arguments: Any) -> None:
    *arrays, rows, units, depth = arguments
    numbers = row_numbers(max(rows, units))
    thread_pool.run(dense.backward, work, dx, *arrays, numbers, rows, units, depth, code_cache=_sites[dx.dtype])
