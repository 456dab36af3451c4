"""What all ranks do together: the sum of a gradient, and equal weights."""

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

MAX_COUNT = 2**31 - 1  # of elements in one call: MPI counts in a C int before MPI-4


def allreduce_gradients(dw: Array, comm: Comm | None) -> None:
    """Replace a gradient by its sum over all ranks, in place.

    All ranks of `comm` call it, with arrays of one size and dtype. Each then has the same bits, as the MPI standard
    demands of MPI_Allreduce; so optimizers that start alike stay alike, and the weights need no further exchange. The
    order of the additions is MPI's: it depends on the number of ranks and on how they lie on the machines, and not on
    which rank comes first, as far as the MPI follows the standard's advice (MPICH and Open MPI do).

    Parameters
    ----------
    dw : ndarray, float32 or float64
        A C-contiguous, writeable array of any shape. NumPy's memory is handed to MPI as it is; a CuPy array needs an
        MPI that says of itself that it is CUDA-aware. A few more numbers that are to be summed, the loss say, or flags
        that ask to stop, go into elements at the end of the same buffer: one collective a step is enough.
    comm : mpi4py.MPI.Comm or None
        What `world` returned; None is a single process, whose sum is its own.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.
    BackendError
        A CuPy array, and the MPI library does not say that it is CUDA-aware.

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
    """Replace the weights of every rank by those of one, in place.

    Parameters
    ----------
    w : ndarray, float32 or float64
        A C-contiguous, writeable array of any shape, of NumPy or CuPy as in `allreduce_gradients`. That all ranks have
        the same size and dtype is checked.
    comm : mpi4py.MPI.Comm or None
        What `world` returned; with None nothing is done.
    root : int
        The rank whose weights all get.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong. Or the ranks' arrays differ in size or dtype; every rank raises it, and none has changed
        its weights.
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
    """The elements of an array, as many at once as one call of MPI takes; on a GPU they are computed by then."""
    if library_of(array) is not np:
        library_of(array).cuda.get_current_stream().synchronize()  # MPI knows nothing of CuPy's stream
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
        cure = f"give an array that numpy.ascontiguousarray({name}) made, and copy the result back"
        raise ValueError(message(function, name, "be C-contiguous", f"strides {value.strides}", cure))
    if library is np and not value.flags.writeable:
        raise ValueError(message(function, name, "be writeable", "a read-only array"))
    check_comm(function, comm)
    if comm is not None and library is not np and not cuda_aware():
        cure = f"reduce a copy on the host, cupy.asnumpy({name}), or use an MPI that was built with CUDA"
        expected = "be a NumPy array with an MPI that is not CUDA-aware"
        raise BackendError(message(function, name, expected, "a CuPy array", cure))


@cache
def cuda_aware() -> bool:
    """Return whether the MPI library says that it takes memory of a GPU; MPICH and Open MPI have a function for it."""
    from mpi4py import MPI

    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)  # it is linked with the MPI library
    return query is not None and query() == 1
