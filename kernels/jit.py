"""The decorators of all kernels and of what they call, and where their machine code is kept between processes."""

import hashlib
import os
from pathlib import Path

import numba
from numba.core.registry import CPUDispatcher

_SOURCES = Path(__file__).parent


def _cache_folder():
    """Folder of the compiled kernels, named after a digest of all kernel sources.

    Numba's disk cache watches only the file of the compiled function, not the files of what it calls; under a
    name that changes with every kernel source, an edit anywhere compiles anew.
    """
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    root = numba.config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "rnnkit" / digest.hexdigest()[:16]


def _writable(folder):
    """Whether `folder` can be made and written; a read-only home is no error, only a slower first call."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


_FOLDER = _cache_folder()
DIGEST = _FOLDER.name
"""Of all kernel sources."""
# No fastmath flag at all: what may be fused is written as `simd.fma`, so that a value has the same bits in the
# vectorised body of a loop, in its scalar rest, on one thread and on many. Loops over units vectorise without it.
# error_model="numpy": the division check of the Python model would keep loops from being vectorised.
# _nrt=False: no reference counting. A kernel owns nothing, and counting took half of the time of a short row.
# no_*_wrapper: what Python or C would call; compiling it takes longer than many a function.
OPTIONS = {
    "error_model": "numpy", "boundscheck": False, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True
}


class _Inner(CPUDispatcher):
    """A compiled function without the wrapper that Python would call; Numba itself would not notice, and crash."""

    def __call__(self, *arguments):
        raise TypeError(f"{self.__name__} is for kernels: compiled without what Python could call")


def inner(function):
    """Compile `function` on first use, cached on disk under the digest of all kernel sources. Only kernels call it."""
    dispatcher = _compiled(function, OPTIONS)
    dispatcher.__class__ = _Inner
    return dispatcher


def kernel(function):
    """`inner`, but what Python calls: it runs without the GIL."""
    return _compiled(function, OPTIONS | {"no_cpython_wrapper": False, "nogil": True})


def _compiled(function, options):
    previous = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_FOLDER)
    try:
        return numba.njit(cache=_writable(_FOLDER), **options)(function)
    finally:
        numba.config.CACHE_DIR = previous
