"""A dense layer on NumPy arrays: scratch of its kernels, and their calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.pool import IDLE
from rnnkit.call.steps import row_numbers
from rnnkit.cpu.layer import contiguous
from rnnkit_kernels import dense, weight_gradient
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.gemm import depth_block, padded, panel_size
from rnnkit_kernels.machine.in_place import MAX_ROWS_IN_PLACE
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


class PackedDense:
    """The weights of a dense layer, packed once for many calls.

    Parameters
    ----------
    w : ndarray (C*I + C,), float32 or float64
        Weights (C, I), then bias (C,). Call `pack` after changing them.
    num_outputs : int
        C.
    max_rows : int
        Largest number of rows of a call. If it is small, weights are read in place, and `pack` copies only the bias.
    """

    def __init__(self, w: np.ndarray, num_outputs: int, max_rows: int):
        self._w, self._units, self._depth = w, num_outputs, w.size // num_outputs - 1
        arena = None if max_rows <= MAX_ROWS_IN_PLACE else Arena()
        self._panels, self._bias = _panels_and_bias(w.dtype, num_outputs, self._depth, arena)
        self.pack()

    def pack(self) -> None:
        """Pack the weights again, after they changed."""
        numbers, work = row_numbers(self._units), self._panels.size
        thread_pool.run(dense.pack, work, self._panels, self._bias, self._w, numbers, self._units, self._depth)

    def forward(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write y (rows, C) of x (rows, I), which are C-contiguous and not empty."""
        _forward(self._w, x, y, self._panels, self._bias, True)


def _panels_and_bias(dtype: np.dtype, units: int, depth: int, arena: Arena | None) -> tuple[np.ndarray, np.ndarray]:
    """Return buffers for the packed weights and the bias; without an arena the weights are read in place."""
    itemsize = dtype.itemsize
    if arena is None:
        ensure_in_place_tiles("columns", itemsize)
        return np.empty(0, dtype), np.empty(padded(units, itemsize), dtype)
    panels = arena.take("panels", (panel_size(depth, units, 1, itemsize),), dtype)
    return panels, arena.take("bias", (padded(units, itemsize),), dtype)


def _forward(
    w: np.ndarray, x: np.ndarray, y: np.ndarray, panels: np.ndarray, bias: np.ndarray, is_packed: bool
) -> None:
    (rows, depth), units = x.shape, y.shape[1]
    thread_pool.run(
        dense.forward, rows * depth * units, y.reshape(-1), x.reshape(-1), w, panels, bias, is_packed,
        row_numbers(max(rows, units)), rows, units, depth, code_cache=_sites[w.dtype],
    )  # fmt: skip


def forward(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Write y (rows, C) = x (rows, I) times weights plus bias; w holds weights, then bias."""
    (rows, depth), units = x.shape, y.shape[1]
    if not rows:
        return
    w, x = contiguous(w), contiguous(x)
    if _reads_in_place(rows, rows * depth * units):
        _forward(w, x, y, *_panels_and_bias(w.dtype, units, depth, None), False)
        return
    with _borrowed() as arena:
        _forward(w, x, y, *_panels_and_bias(w.dtype, units, depth, arena), False)


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


def add_rows(sums: np.ndarray, index: np.ndarray, rows: np.ndarray) -> None:
    """Compute sums[index[i]] += rows[i] in the order of i; sums (K, I) is C-contiguous."""
    if rows.size:
        arrays = sums.reshape(-1), contiguous(index), contiguous(rows).reshape(-1)
        thread_pool.run(dense.add_rows, rows.size, *arrays, rows.shape[1])
