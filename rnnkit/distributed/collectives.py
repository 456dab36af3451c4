"""Collective operations: sum gradients, broadcast weights."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rnnkit.common.arrays import Array, library_of, not_an_array
from rnnkit.distributed.launch import check_comm, check_int
from rnnkit.errors import BackendError, message

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

MAX_COUNT = 2**31 - 1  # elements in one call: MPI counts in a C int before MPI-4


def allreduce_gradients(dw: Array, comm: Comm | None) -> None:
    """Replace a gradient by its sum over all ranks, in place.

    All ranks of `comm` call it, with arrays of one size and dtype. The result is bit-identical on all ranks, as the MPI
    standard guarantees for MPI_Allreduce; so identical optimizers stay identical, and the weights need no further
    exchange. MPI chooses the order of the additions: it depends on the number and the placement of the ranks, but not
    on which rank arrives first if the MPI follows the standard's advice (MPICH and Open MPI do).

    Parameters
    ----------
    dw : ndarray, float32 or float64
        A C-contiguous, writeable array of any shape. MPI reads and writes it without a copy; a CuPy array needs a
        CUDA-aware MPI. Put other numbers to sum, for example the loss or a flag that asks to stop, into extra elements
        at the end of the same buffer: then one collective a step is enough.
    comm : mpi4py.MPI.Comm or None
        The value of `world`. With None, a single process, nothing happens.

    Raises
    ------
    TypeError, ValueError
        Invalid argument.
    BackendError
        A CuPy array, but the MPI library does not report that it is CUDA-aware.

    Examples
    --------
    >>> import numpy as np
    >>> sums = np.zeros(100 + 2, np.float32)
    >>> dw, loss, stop = sums[:100], sums[100:101], sums[101:]  # backward adds into dw
    >>> allreduce_gradients(sums, comm=None)
    """
    _check_buffer("allreduce_gradients", "dw", dw, comm)
    if comm is None:
        return
    from mpi4py import MPI

    for block in _blocks(dw):
        comm.Allreduce(MPI.IN_PLACE, block)


def broadcast_weights(w: Array, comm: Comm | None, root: int = 0) -> None:
    """Replace the weights of every rank by those of rank `root`, in place.

    Parameters
    ----------
    w : ndarray, float32 or float64
        A C-contiguous, writeable array of any shape, of NumPy or CuPy as in `allreduce_gradients`. Its size and dtype
        must be the same on all ranks; this is checked.
    comm : mpi4py.MPI.Comm or None
        The value of `world`. With None nothing happens.
    root : int
        Rank whose weights are broadcast.

    Raises
    ------
    TypeError, ValueError
        Invalid argument, or the ranks' arrays differ in size or dtype. All ranks raise, before any weights change.
    BackendError
        As from `allreduce_gradients`.
    """
    _check_buffer("broadcast_weights", "w", w, comm)
    check_int("broadcast_weights", "root", root)
    if comm is None:
        return
    if not 0 <= root < comm.size:
        raise ValueError(message("broadcast_weights", "root", f"be in 0..{comm.size - 1}", root))
    kinds = comm.allgather(f"{w.size} elements of {w.dtype}")
    if len(set(kinds)) > 1:
        other = next(rank for rank in range(comm.size) if kinds[rank] != kinds[root])
        expected = f"have on every rank the size and dtype that it has on rank {root}, {kinds[root]}"
        raise ValueError(message("broadcast_weights", "w", expected, f"{kinds[other]} on rank {other}"))
    for block in _blocks(w):
        comm.Bcast(block, root)


def _blocks(array: Array) -> Iterator[Array]:
    """Split an array into blocks of at most MAX_COUNT elements; on a GPU, wait for its values first."""
    if library_of(array) is not np:
        library_of(array).cuda.get_current_stream().synchronize()  # MPI does not wait for CuPy's stream
    flat = array.reshape(-1)
    for start in range(0, flat.size, MAX_COUNT):
        yield flat[start : start + MAX_COUNT]


def _check_buffer(function: str, name: str, value: Any, comm: Any) -> None:
    library = library_of(value)
    if library is None:
        raise not_an_array(function, name, "a numpy.ndarray or a cupy.ndarray", value)
    if value.dtype not in (np.float32, np.float64):
        raise TypeError(message(function, name, "be float32 or float64", value.dtype))
    if not value.flags.c_contiguous:
        cure = f"pass numpy.ascontiguousarray({name}), and copy the result back"
        raise ValueError(message(function, name, "be C-contiguous", f"strides {value.strides}", cure))
    if library is np and not value.flags.writeable:
        raise ValueError(message(function, name, "be writeable", "a read-only array"))
    check_comm(function, comm)
    if comm is not None and library is not np and not cuda_aware():
        cure = f"reduce a copy on the host, cupy.asnumpy({name}), or use an MPI built with CUDA"
        expected = "be a NumPy array with an MPI that is not CUDA-aware"
        raise BackendError(message(function, name, expected, "a CuPy array", cure))


@cache
def cuda_aware() -> bool:
    """Return whether the MPI library reports that it is CUDA-aware; MPICH and Open MPI have a function for it."""
    from mpi4py import MPI

    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)  # mpi4py is linked with the MPI library
    return query is not None and query() == 1
