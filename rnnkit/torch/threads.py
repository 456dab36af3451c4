"""Run the engine in PyTorch on PyTorch's thread count, and on its OpenMP threads if possible.

PyTorch's threads spin for a while after each operation and compete with the engine's workers for cores: training steps
took up to twice as long (GRU, H = 256, packed). So the engine opens a parallel region of the same OpenMP runtime.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rnnkit_kernels.machine.forks import after_fork_in_child
from rnnkit_kernels.machine.imports import imported

_forked = False  # since this module was imported


def threads() -> AbstractContextManager[None]:
    """Return a context in which the engine uses PyTorch's number of threads."""
    size = torch.get_num_threads()
    pool = _pool(size) if size > 1 and not _forked else None
    return _thread_override()(size, pool)


@cache
def _thread_override() -> Any:
    return imported("rnnkit_kernels.machine.thread_pool").thread_override


@cache
def _pool(size: int) -> Any:
    """Return the pool of a size; None if the runtime does not support it."""
    runtime = _runtime()
    if runtime is None:
        return None
    return imported("rnnkit_kernels.machine.openmp").OpenMPPool(runtime, size)


@cache
def _runtime() -> ctypes.CDLL | None:
    """Return PyTorch's OpenMP runtime, from the folder of its libraries; None if it is of another kind."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    folder = Path(torch.__file__).with_name("lib")
    for path in sorted(folder.glob("lib*omp*.so*")):
        with suppress(OSError):  # not the library in use
            library = ctypes.CDLL(str(path), os.RTLD_NOLOAD)
            if hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_thread_num"):
                return library
    return None


@after_fork_in_child
def _disable_after_fork() -> None:
    """Stop using the OpenMP threads: GNU's runtime hangs in a forked child."""
    global _forked
    _forked = True
