"""Helpers for one rank: its slice of the batch, its cores, and aborting on failure."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING

from rnnkit.distributed.launch import check_comm, check_int
from rnnkit.errors import message
from rnnkit_kernels.machine.imports import imported

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_FORWARDING = 0.2  # seconds for the launcher to forward stderr: MPICH's exits at once on an Abort and loses the rest


def shard(size: int, comm: Comm | None) -> slice:
    """Return the slice of `size` items that belongs to this rank.

    The ranks' slices are consecutive and cover all items; their sizes differ by at most one.

    Parameters
    ----------
    size : int
        Number of items, for example sequences of a batch.
    comm : mpi4py.MPI.Comm or None
        The value of `world`. With None all items belong to this process.

    Returns
    -------
    slice

    Raises
    ------
    TypeError
        `size` is not an int, or `comm` is not a communicator.
    ValueError
        There are more ranks than items: some ranks would be idle.

    Examples
    --------
    >>> shard(8, comm=None)
    slice(0, 8, None)
    """
    check_comm("shard", comm)
    check_int("shard", "size", size)
    ranks, rank = (1, 0) if comm is None else (comm.size, comm.rank)
    if size < ranks:
        expected = f"be at least the number of ranks={ranks}"
        raise ValueError(message("shard", "size", expected, size, "start fewer ranks"))
    return slice(size * rank // ranks, size * (rank + 1) // ranks)


def share_cores(comm: Comm | None) -> int:
    """Divide a machine's cores among its ranks, and return the number of threads of this rank.

    Collective: all ranks of `comm` must call it. It calls `numba.set_num_threads`, which applies to the calling Python
    thread. Each rank counts the cores that its launcher allows it; a core that k ranks may use counts as 1/k. A rank
    with NUMBA_NUM_THREADS in its environment keeps that number.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm or None
        The value of `world`. With None nothing changes.

    Returns
    -------
    int
        Number of engine threads in this process.
    """
    check_comm("share_cores", comm)
    thread_pool = imported("rnnkit_kernels.machine.thread_pool")
    allowed = [] if comm is None else _on_this_machine(comm, _cores())
    if allowed and "NUMBA_NUM_THREADS" not in os.environ:
        share = sum(Fraction(1, sum(core in cores for cores in allowed)) for core in _cores())
        imported("numba").set_num_threads(max(1, int(share)))
    return thread_pool.wanted_size()


def _on_this_machine(comm: Comm, value: set[int]) -> list[set[int]]:
    """Return the values of all ranks on this machine."""
    from mpi4py import MPI

    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    values = local.allgather(value)
    local.Free()
    return values


def _cores() -> set[int]:
    """Return the cores that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


@contextmanager
def aborting(comm: Comm | None) -> Iterator[None]:
    """Abort all ranks when this one fails, so that none waits for it forever.

    After an exception inside the ``with`` block, this prints a line that names the rank, then the traceback; MPI_Abort
    then ends every rank with the exit status that the program would have had. If a rank is killed, for example by a
    signal, its launcher ends the others.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm or None
        The value of `world`. With None exceptions propagate as usual.

    Examples
    --------
    >>> with aborting(comm=None):
    ...     pass  # read the data, train, save
    """
    check_comm("aborting", comm)
    try:
        yield
    except BaseException as error:
        if comm is None or (isinstance(error, SystemExit) and not error.code):
            raise
        _show(error, f"rank {comm.rank} of {comm.size} failed; aborting all ranks:")
        status = _exit_status(error)
        time.sleep(_FORWARDING)
        comm.Abort(status)
        os._exit(status)  # MPICH's Abort returns before the process ends: the traceback would be printed twice


def _show(error: BaseException, title: str) -> None:
    sys.stdout.flush()
    print(title, file=sys.stderr)
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif not isinstance(error.code, int):
        print(error.code, file=sys.stderr)
    sys.stderr.flush()


def _exit_status(error: BaseException) -> int:
    """Return the exit status that a shell would see: 1 for an exception, 128 + SIGINT for Ctrl-C."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return 130 if isinstance(error, KeyboardInterrupt) else 1
