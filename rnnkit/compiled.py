"""Steps of a network in your own compiled loops: in functions under ``@numba.njit``, without Python.

``plan.compiled()`` makes a handle, an array of int64, and :func:`step` and :func:`infer` run the network by it:

>>> import numba
>>> import numpy as np
>>> import rnnkit
>>> from rnnkit import compiled
>>> @numba.njit
... def simulate(handle, x, h, c):
...     for _ in range(100):  # feeds its output back
...         compiled.step(handle, x, h, c)
...         x[:] = h[-1]
...     return x
>>> plan = rnnkit.LSTM(8, 8, seed=0).prepare()
>>> handle = plan.compiled()
>>> x, h, c = np.ones(8, np.float32), np.zeros((1, 8), np.float32), np.zeros((1, 8), np.float32)
>>> simulate(handle, x, h, c).shape
(8,)

One function serves all networks of a dtype: your loop is compiled once, can be cached (``cache=True``), and takes
handles as arguments. A handle belongs to the process that made it and to one thread at a time; ``plan.compiled(4)``
makes four, one in each row, for the threads of a ``prange``. It keeps its plan alive. A copy, a pickled one, one that a
fork inherited, and one that another thread is using raise an error.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.errors import TypingError
from numba.extending import overload

from rnnkit.errors import message
from rnnkit_kernels import handles
from rnnkit_kernels.handles import (
    BUSY,
    CALL,
    CX,
    CY,
    HX,
    HY,
    ITEMSIZE,
    KERNEL,
    MAGIC,
    MAGIC_NUMBER,
    OUTPUT,
    OUTPUTS,
    PROCESS,
    ROW,
    SELF,
    SIZE,
    STATES,
    STEPS,
    X,
    Y,
    process_address,
)
from rnnkit_kernels.machine.entries import copy_bytes, words_at
from rnnkit_kernels.machine.sync import exchange, store

__all__ = ["infer", "step"]

_WORD = 8  # bytes


def step(handle: Any, x: Any, h: Any, c: Any = None) -> None:
    """Run one step of one sequence, with the bits of ``plan.step``.

    Parameters
    ----------
    handle : ndarray of int64
        A handle of ``plan.compiled()``, or a row of several.
    x : ndarray (I,), dtype of the network
        The input. Side inputs of a cell follow it, H numbers each.
    h : ndarray (L, P)
        The hidden states, overwritten by the new ones. The output is the last row, ``h[-1]``.
    c : ndarray (L, S*H), optional
        The other states of the cell, overwritten; not given without any.

    Raises
    ------
    TypeError
        An array is not C-contiguous or of another dtype than x; in compiled code as an error of Numba. Or the network
        is of another dtype.
    ValueError
        An array has another number of elements than the network needs; or `handle` is no handle, or a copy of one.
    RuntimeError
        The handle is of another process, or in use by another thread.
    """
    _step(handle, x, h, c)


def infer(handle: Any, x: Any, y: Any, h: Any, c: Any = None) -> None:
    """Run all steps of one sequence, with the bits of ``plan.infer``.

    Parameters
    ----------
    handle : ndarray of int64
        As in :func:`step`.
    x : ndarray (T, I), dtype of the network
        The input.
    y : ndarray (T, P)
        Gets the outputs.
    h, c : ndarray
        The states before the first step, as in :func:`step`, overwritten by those after the last.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As in :func:`step`.
    """
    _infer(handle, x, y, h, c)


_run = {np.float32: handles.run_of(np.float32), np.float64: handles.run_of(np.float64)}


def _check_types(function: str, handle: Any, **arrays: Any) -> None:
    """Raise TypingError for arguments that the kernel cannot take."""
    if not (
        isinstance(handle, types.Array) and handle.dtype == types.int64 and handle.layout == "C" and handle.mutable
    ):
        raise TypingError(message(function, "handle", "be an array of int64 from plan.compiled()", handle))
    real = getattr(arrays["x"], "dtype", None)
    for name, kind in arrays.items():
        if name == "c" and (kind is None or isinstance(kind, (types.NoneType, types.Omitted))):
            continue
        if not (isinstance(kind, types.Array) and kind.layout == "C" and real in (types.float32, types.float64)):
            raise TypingError(message(function, name, "be a C-contiguous array of float32 or float64", kind))
        if name != "x" and not kind.mutable:
            raise TypingError(message(function, name, "be writeable", "a read-only array"))
        if kind.dtype != real:
            raise TypingError(message(function, name, f"be of {real}, as x is", kind.dtype))


def _has(kind: Any) -> bool:
    return isinstance(kind, types.Array)


@numba.njit(error_model="numpy")
def _enter(handle, itemsize):
    """Check a handle, and take it."""
    if handle.size != SIZE or handle[MAGIC] != MAGIC_NUMBER or handle[SELF] != handle.ctypes.data:
        raise ValueError("compiled: handle must be of plan.compiled() in this version of rnnkit, and no copy of it")
    if handle[PROCESS] != words_at(process_address(), 1)[0]:
        raise RuntimeError("compiled: handle must be of this process: call plan.compiled() after a fork")
    if handle[ITEMSIZE] != itemsize:
        raise TypeError("compiled: x must have the dtype of the network")
    if not exchange(handle, BUSY, 0, 1):
        raise RuntimeError(
            "compiled: handle must be in use by one thread at a time: plan.compiled(count) makes several"
        )


@numba.njit(error_model="numpy")
def _fill(handle, x, steps, h, c, c_size, y, y_size):
    """Fill in what differs between calls."""
    handle[X], handle[X + 1] = x, steps * handle[ROW]
    handle[HX], handle[HX + 1] = h, handle[OUTPUTS]
    handle[CX], handle[CX + 1] = c, c_size
    handle[Y], handle[Y + 1] = y, y_size
    handle[STEPS] = steps


@overload(step)
def _step_in_compiled_code(handle, x, h, c=None):
    _check_types("compiled.step", handle, x=x, h=h, c=c)
    run, itemsize, has_c = _run[np.dtype(str(x.dtype)).type], x.dtype.bitwidth // 8, _has(c)

    def run_step(handle, x, h, c=None):
        _enter(handle, itemsize)
        states = c.size if has_c else 0
        if x.size != handle[ROW] or h.size != handle[OUTPUTS] or states != handle[STATES]:
            store(handle, BUSY, 0)
            raise ValueError(
                "compiled.step: x, h and c must have as many numbers as a row, and the states, of the network"
            )
        c_address = c.ctypes.data if has_c else 0
        _fill(handle, x.ctypes.data, 1, h.ctypes.data, c_address, states, 0, 0)
        run(handle[KERNEL], handle.ctypes.data + CALL * _WORD)
        copy_bytes(h.ctypes.data, handle[HY], h.size * itemsize)
        copy_bytes(c_address, handle[CY], states * itemsize)
        store(handle, BUSY, 0)

    return run_step


@overload(infer)
def _infer_in_compiled_code(handle, x, y, h, c=None):
    _check_types("compiled.infer", handle, x=x, y=y, h=h, c=c)
    run, itemsize, has_c = _run[np.dtype(str(x.dtype)).type], x.dtype.bitwidth // 8, _has(c)

    def run_all(handle, x, y, h, c=None):
        _enter(handle, itemsize)
        states, steps = c.size if has_c else 0, x.size // handle[ROW]
        fits = x.size == steps * handle[ROW] and y.size == steps * handle[OUTPUT]
        if not fits or h.size != handle[OUTPUTS] or states != handle[STATES]:
            store(handle, BUSY, 0)
            raise ValueError(
                "compiled.infer: x, y, h and c must have as many numbers as rows, and states, of the network"
            )
        c_address = c.ctypes.data if has_c else 0
        if steps > 0:
            _fill(handle, x.ctypes.data, steps, h.ctypes.data, c_address, states, y.ctypes.data, y.size)
            run(handle[KERNEL], handle.ctypes.data + CALL * _WORD)
            last = (steps - 1) % 2 * itemsize
            copy_bytes(h.ctypes.data, handle[HY] + last * h.size, h.size * itemsize)
            copy_bytes(c_address, handle[CY] + last * states, states * itemsize)
        store(handle, BUSY, 0)

    return run_all


@numba.njit
def _step(handle, x, h, c):
    step(handle, x, h, c)


@numba.njit
def _infer(handle, x, y, h, c):
    infer(handle, x, y, h, c)
