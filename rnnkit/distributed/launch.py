"""Whether an MPI launcher started this process, and the communicator of all that it started."""

from __future__ import annotations

import os
import sys
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rnnkit.common.extras import to_install_extra
from rnnkit.errors import BackendError, message, wrong_type

if TYPE_CHECKING:
    from types import ModuleType

    from mpi4py.MPI import Comm


class Launcher(NamedTuple):
    """A kind of launcher, by what it sets in the environment of each process: a rank, and how many there are."""

    name: str
    rank: str
    size: str


# Open MPI documents its two, for every process that mpirun starts (Open MPI 5.0, "Environment variables set for MPI
# applications"). PMI's are those of MPICH's mpiexec, of all that are made from it (Intel's, MVAPICH's), and of Slurm's
# plugins pmi2 and cray_shasta. PMIx knows no variable for the size; Slurm documents one of its own (srun(1)). That one
# alone says nothing: srun also starts programs without MPI. In this order, as an mpirun may run within an srun.
LAUNCHERS = (
    Launcher("Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("an mpiexec of MPICH's kind", "PMI_RANK", "PMI_SIZE"),
    Launcher("a PMIx launcher", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)
NOT_FOR_OPEN_MPI = "MPICH", "Intel MPI", "MVAPICH", "MVAPICH2"  # as mpi4py names them
EXTRA = (
    f"{to_install_extra('mpi')}, which brings mpi4py and MPICH's mpiexec; on a cluster install mpi4py for its own MPI"
)


def world() -> Comm | None:
    """Return the communicator of all processes that an MPI launcher started together, or None.

    Without mpi4py a process can only tell by its environment. What the launchers set is looked at, and mpi4py, whose
    import starts MPI, is imported only where there is such a sign of more than one rank. Where a launcher leaves none,
    start the program with ``python -m mpi4py``: what has started MPI already is asked in any case.

    Returns
    -------
    mpi4py.MPI.Comm or None
        MPI's COMM_WORLD; None in a process that was not started by a launcher, or as its only rank.

    Raises
    ------
    BackendError
        A launcher started several ranks and mpi4py cannot be imported, or it belongs to another MPI than the launcher
        does: then each process would be alone.
    """
    launcher, ranks = _launcher()
    loaded = sys.modules.get("mpi4py.MPI")
    if loaded is None and (launcher is None or ranks == 1):
        return None
    comm = _started(loaded or _import(launcher, ranks)).COMM_WORLD
    if comm.size == 1 and ranks is not None and ranks > 1:
        raise BackendError(_mismatch(launcher, ranks, "a world of 1 rank"))
    return comm if comm.size > 1 else None


def check_comm(function: str, comm: Any) -> None:
    """Check what `world` returned: None, or a communicator."""
    if comm is not None and not (hasattr(comm, "size") and hasattr(comm, "rank")):
        raise wrong_type(function, "comm", "None or an mpi4py.MPI.Comm", comm)


def check_int(function: str, argument: str, value: Any) -> None:
    """Check the number of a rank, or of what the ranks share."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise wrong_type(function, argument, "an int", value)


def _launcher() -> tuple[Launcher | None, int | None]:
    """Which launcher started this process, and how many ranks; None where it does not say: PMIx without Slurm."""
    for launcher in LAUNCHERS:
        if launcher.rank in os.environ:
            told = os.environ.get(launcher.size, "")
            return launcher, int(told) if told.isdecimal() else None
    return None, None


def _import(launcher: Launcher, ranks: int | None) -> ModuleType:
    try:
        import mpi4py

        # MPICH ends a process that Open MPI's launcher started as soon as it is initialized.
        mpi4py.rc(initialize=False, finalize=True)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # the latter: it finds no MPI library
        expected = f"be importable in a process started by {_told(launcher, ranks)}"
        raise BackendError(message("world", "mpi4py", expected, f"{type(error).__name__}: {error}", EXTRA)) from error
    vendor, version = MPI.get_vendor()
    if launcher is LAUNCHERS[0] and vendor in NOT_FOR_OPEN_MPI:
        raise BackendError(_mismatch(launcher, ranks, f"{vendor} {'.'.join(map(str, version))}"))
    return _started(MPI)


def _started(MPI: ModuleType) -> ModuleType:
    if not MPI.Is_initialized():
        MPI.Init_thread()
    return MPI


def _told(launcher: Launcher, ranks: int | None) -> str:
    return f"{launcher.name} with {ranks} ranks ({launcher.size}={ranks})" if ranks else launcher.name


def _mismatch(launcher: Launcher, ranks: int | None, got: str) -> str:
    expected = f"use the MPI of the launcher, {_told(launcher, ranks)}"
    cure = (
        "start it with the mpiexec of mpi4py's MPI (python -m mpi4py --mpi-library names it; that of the wheel mpich "
        "lies beside the environment's python), or install mpi4py for the launcher's MPI"
    )
    return message("world", "mpi4py", expected, got, cure)
