"""What a rank does for itself: its share of the batch and of the cores, and its end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING

from rnnkit.call import forking
from rnnkit.distributed.launch import check_comm, check_int
from rnnkit.errors import message

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_FORWARDED = 0.2  # seconds for the launcher to show what was printed: MPICH's ends at once on an Abort, and loses it


def shard(size: int, comm: Comm | None) -> slice:
    """Return which of `size` items are this rank's.

    The ranks' slices follow one another and leave nothing out; their sizes differ by at most one.

    Parameters
    ----------
    size : int
        How many items there are, sequences of a batch say.
    comm : mpi4py.MPI.Comm or None
        What `world` returned; with None all items are this process's.

    Returns
    -------
    slice

    Raises
    ------
    TypeError
        `size` is no int, or `comm` no communicator.
    ValueError
        There are more ranks than items: one would have nothing to do.

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
    """Let the engine's threads in the ranks of one machine share its cores, and return how many this rank takes.

    Calls `numba.set_num_threads`, which is for the Python thread that calls it. All ranks of `comm` do. Each counts
    the cores that its launcher allows it, a core that k ranks may use as 1/k. A rank with NUMBA_NUM_THREADS in its
    environment keeps to that.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm or None
        What `world` returned; with None nothing is changed.

    Returns
    -------
    int
        The number of threads of the engine in this process.
    """
    check_comm("share_cores", comm)
    with forking.importing:
        import numba

        from rnnkit.kernels.machine.team import wanted_size
    allowed = [] if comm is None else _on_this_machine(comm, _cores())
    if allowed and "NUMBA_NUM_THREADS" not in os.environ:
        share = sum(Fraction(1, sum(core in cores for cores in allowed)) for core in _cores())
        numba.set_num_threads(max(1, int(share)))
    return wanted_size()


def _on_this_machine(comm: Comm, value: set[int]) -> list[set[int]]:
    """The values of the ranks that share this machine's memory."""
    from mpi4py import MPI

    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    values = local.allgather(value)
    local.Free()
    return values


def _cores() -> set[int]:
    """The cores that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


@contextmanager
def aborting(comm: Comm | None) -> Iterator[None]:
    """End all ranks when this one fails, so that none waits for it for ever.

    An exception inside the ``with`` block is shown as at the end of a program, after a line that names the rank; then
    MPI_Abort ends every rank, with the exit status that this one would have had. Where a rank dies without a word, by
    a signal say, its launcher ends the others.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm or None
        What `world` returned; with None exceptions go on as ever.

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
        _show(error, f"rank {comm.rank} of {comm.size} ends all:")
        status = _exit_status(error)
        time.sleep(_FORWARDED)
        comm.Abort(status)
        os._exit(status)  # MPICH's Abort returns until the launcher has ended this process: it would be shown twice


def _show(error: BaseException, title: str) -> None:
    sys.stdout.flush()
    print(title, file=sys.stderr)
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif not isinstance(error.code, int):
        print(error.code, file=sys.stderr)
    sys.stderr.flush()


def _exit_status(error: BaseException) -> int:
    """As a shell would see it: an error of the program is 1, Ctrl-C is 128 + SIGINT."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return 130 if isinstance(error, KeyboardInterrupt) else 1
