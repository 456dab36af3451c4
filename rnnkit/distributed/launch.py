"""Detect an MPI launcher, and return the communicator of all processes that it started."""

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
    """A kind of launcher, and the environment variables in which it sets the rank and the number of ranks."""

    name: str
    rank: str
    size: str


# OMPI_*: Open MPI's mpirun (Open MPI 5.0, "Environment variables set for MPI applications").
# PMI_*: MPICH's mpiexec, those derived from it (Intel's, MVAPICH's), and Slurm's plugins pmi2 and cray_shasta.
# PMIX_RANK: any PMIx launcher. PMIx has no variable for the size; Slurm sets SLURM_STEP_NUM_TASKS (srun(1)), but also
# for programs without MPI, so its size alone is no sign of MPI.
# The order matters: an mpirun may run within an srun.
LAUNCHERS = (
    Launcher("Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("an mpiexec of MPICH's kind", "PMI_RANK", "PMI_SIZE"),
    Launcher("a PMIx launcher", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)
NOT_FOR_OPEN_MPI = "MPICH", "Intel MPI", "MVAPICH", "MVAPICH2"  # the names that mpi4py gives them
EXTRA = f"{to_install_extra('mpi')}, which installs mpi4py and MPICH's mpiexec; on a cluster install mpi4py for its MPI"


def world() -> Comm | None:
    """Return the communicator of all processes that an MPI launcher started together, or None.

    Environment variables show the launcher. mpi4py, whose import starts MPI, is imported only if they show more than
    one rank. With a launcher that sets no such variables, start the program with ``python -m mpi4py``: an MPI that is
    already initialized is always used.

    Returns
    -------
    mpi4py.MPI.Comm or None
        MPI's COMM_WORLD; None without a launcher, or in its only rank.

    Raises
    ------
    BackendError
        A launcher started several ranks, but mpi4py cannot be imported, or it uses another MPI than the launcher: each
        process would be a world of its own.
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
    """Check that a value is None or a communicator."""
    if comm is not None and not (hasattr(comm, "size") and hasattr(comm, "rank")):
        raise wrong_type(function, "comm", "None or an mpi4py.MPI.Comm", comm)


def check_int(function: str, argument: str, value: Any) -> None:
    """Check that a value is an int."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise wrong_type(function, argument, "an int", value)


def _launcher() -> tuple[Launcher | None, int | None]:
    """Return the launcher that started this process, and its number of ranks (None under PMIx without Slurm)."""
    for launcher in LAUNCHERS:
        if launcher.rank in os.environ:
            size = os.environ.get(launcher.size, "")
            return launcher, int(size) if size.isdecimal() else None
    return None, None


def _import(launcher: Launcher, ranks: int | None) -> ModuleType:
    try:
        import mpi4py

        # Delay MPI_Init: MPICH aborts if it is initialized under Open MPI's launcher.
        mpi4py.rc(initialize=False, finalize=True)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        expected = f"be importable in a process started by {_described(launcher, ranks)}"
        raise BackendError(message("world", "mpi4py", expected, f"{type(error).__name__}: {error}", EXTRA)) from error
    vendor, version = MPI.get_vendor()
    if launcher is LAUNCHERS[0] and vendor in NOT_FOR_OPEN_MPI:
        raise BackendError(_mismatch(launcher, ranks, f"{vendor} {'.'.join(map(str, version))}"))
    return _started(MPI)


def _started(MPI: ModuleType) -> ModuleType:
    if not MPI.Is_initialized():
        MPI.Init_thread()
    return MPI


def _described(launcher: Launcher, ranks: int | None) -> str:
    return f"{launcher.name} with {ranks} ranks ({launcher.size}={ranks})" if ranks else launcher.name


def _mismatch(launcher: Launcher, ranks: int | None, got: str) -> str:
    expected = f"use the MPI of the launcher, {_described(launcher, ranks)}"
    cure = (
        "start it with the mpiexec of mpi4py's MPI (python -m mpi4py --mpi-library names it; the wheel mpich installs "
        "its mpiexec next to the environment's python), or install mpi4py for the launcher's MPI"
    )
    return message("world", "mpi4py", expected, got, cure)
