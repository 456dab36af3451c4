"""The threads that the engine runs on within PyTorch: as many as PyTorch has, and PyTorch's own where that can be.

PyTorch's threads spin for a while after each of its operations and take the cores from the engine's helpers: training
steps took up to twice as long (GRU, H = 256, packed). So the engine opens a region of the same OpenMP runtime instead.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rnnkit.call import forking
from rnnkit.kernels.machine.forks import after_fork_in_child

_forked = False  # since this was imported


def threads() -> AbstractContextManager[None]:
    """Run the engine's calls meanwhile on the number of threads that PyTorch has."""
    size = torch.get_num_threads()
    team = _team(size) if size > 1 and not _forked else None
    return _thread_override()(size, team)


@cache
def _thread_override() -> Any:
    with forking.importing:
        from rnnkit.kernels.machine.team import thread_override
    return thread_override


@cache
def _team(size: int) -> Any:
    """The team of a size; None where the runtime does not have what it takes."""
    runtime = _runtime()
    if runtime is None:
        return None
    with forking.importing:
        from rnnkit.kernels.machine.openmp import OpenMPTeam
    return OpenMPTeam(runtime, size)


@cache
def _runtime() -> ctypes.CDLL | None:
    """PyTorch's OpenMP runtime, which lies beside its own libraries; None where it is another kind."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    folder = Path(torch.__file__).with_name("lib")
    for path in sorted(folder.glob("lib*omp*.so*")):
        with suppress(OSError):  # not the one that is in use
            library = ctypes.CDLL(str(path), os.RTLD_NOLOAD)
            if hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_thread_num"):
                return library
    return None


@after_fork_in_child
def _lend_no_more() -> None:
    """GNU's runtime hangs in a forked child."""
    global _forked
    _forked = True
