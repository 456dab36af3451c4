"""A dense layer on NumPy arrays: what its kernels work in, and their calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.memory import IDLE_BYTES, popped
from rnnkit.call.steps import row_numbers
from rnnkit.cpu.layer import dense as as_dense
from rnnkit.kernels import dense, weight_gradient
from rnnkit.kernels.machine import team
from rnnkit.kernels.machine.gemm import depth_block, padded, panel_size
from rnnkit.kernels.machine.in_place import MOST_ROWS
from rnnkit.kernels.machine.matrix import Matrix
from rnnkit.kernels.machine.tiles import supply_in_place

_idle: deque[Arena] = deque()
_sites: dict[np.dtype, dict] = {}  # of `team.bound`, by the dtype of a call's arrays


@contextmanager
def borrowed() -> Iterator[Arena]:
    """Memory to work in, which is another call's afterwards."""
    arena = popped(_idle) or Arena()
    try:
        yield arena
    finally:
        if arena.nbytes <= IDLE_BYTES and not _idle:
            _idle.append(arena)


class PackedDense:
    """The weights of a dense layer, packed once for many calls.

    Parameters
    ----------
    w : ndarray (C*I + C,), float32 or float64
        Weights (C, I), then bias (C,); read by `pack` alone, unless few rows are multiplied in place.
    num_outputs : int
        C.
    arena : Arena
        Where the panels are.
    in_place : bool
        Whether the weights are read where they are: what few rows are multiplied with is sooner read than packed.
    """

    def __init__(self, w: np.ndarray, num_outputs: int, arena: Arena, in_place: bool = False):
        self._w, self._units, self._depth = w, num_outputs, w.size // num_outputs - 1
        itemsize = w.dtype.itemsize
        size = 0 if in_place else panel_size(self._depth, num_outputs, 1, itemsize)
        if in_place:
            supply_in_place("columns", itemsize)
        self._panels = arena.take("panels", (size,), w.dtype)
        self._bias = arena.take("bias", (padded(num_outputs, itemsize),), w.dtype)
        self._numbers = row_numbers(num_outputs)
        self.pack()

    def pack(self) -> None:
        """Read the weights, which have changed."""
        work = self._panels.size
        team.run(dense.pack, work, self._panels, self._bias, self._w, self._numbers, self._depth, self._units)

    def forward(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write y (rows, C) of x (rows, I), which are C-contiguous."""
        if y.size:
            self.ready(x, y)()

    def ready(self, x: np.ndarray, y: np.ndarray) -> Callable[[], None]:
        """Return what does the same, each time with the numbers that are in x then; there is at least one row."""
        arguments = as_matrix(y), as_matrix(x), self._panels, self._bias, self._numbers
        site = _sites.setdefault(self._w.dtype, {})
        return partial(team.bound(dense.forward, y.size * self._depth, self._w, *arguments, site=site), self._w)


def forward(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Write y (rows, C) = x (rows, I) times weights plus bias, which stand in w."""
    with borrowed() as arena:
        PackedDense(as_dense(w), y.shape[1], arena, len(x) <= MOST_ROWS).forward(as_dense(x), y)


def backward(w: np.ndarray, x: np.ndarray, dy: np.ndarray, dx: np.ndarray, dw: np.ndarray) -> None:
    """Write dx (rows, I), and add the gradient by w to dw."""
    if not x.size:
        return
    with borrowed() as arena:
        (rows, depth), units, itemsize = x.shape, dy.shape[1], w.dtype.itemsize
        in_place, block = rows <= MOST_ROWS, min(depth_block(itemsize), rows)
        if in_place:
            supply_in_place("rows", itemsize)
        sizes = {
            "weights": 0 if in_place else panel_size(units, depth, 1, itemsize),
            "x": 0 if in_place else panel_size(block, depth, 1, itemsize),
            "scratch": weight_gradient.scratch_size(units, team.most_threads(), block),
        }
        room = [arena.take(name, (size,), w.dtype) for name, size in sizes.items()]
        zeros = np.zeros(padded(depth, itemsize), w.dtype)
        matrices = (as_matrix(as_dense(array)) for array in (dy, x))
        arguments = as_matrix(dx), dw, *matrices, as_dense(w), *room, zeros, row_numbers(units)
        team.run(dense.backward, 2 * rows * depth * units, *arguments)


def add_rows(sums: np.ndarray, index: np.ndarray, rows: np.ndarray) -> None:
    """Add to sums[index[i]] the row number i, one after the other; sums (K, I) is C-contiguous."""
    if rows.size:
        team.run(dense.add_rows, rows.size, as_matrix(sums), as_dense(index), as_matrix(as_dense(rows)))


def as_matrix(array: np.ndarray) -> Matrix:
    """The rows of a C-contiguous array (rows, columns), for a kernel."""
    return Matrix(array.reshape(-1), row_numbers(len(array)), 0, array.shape[1])
