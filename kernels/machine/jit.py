"""The decorators of all kernels and of what they call."""

import hashlib
from pathlib import Path

import numba
from numba.core.registry import CPUDispatcher

from .cache import Cache, Folder, root

_SOURCES = Path(__file__).parents[1]


def _digest():
    """Digest of all kernel sources, which names the folder of their machine code.

    A cache by the file of the compiled function alone would not notice an edit in the files of what it calls.
    """
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.rglob("*.py")):
        digest.update(str(source.relative_to(_SOURCES)).encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


DIGEST = _digest()
"""Of all kernel sources."""
FOLDER = Folder(root(), "rnnkit", DIGEST)
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
    dispatcher = numba.njit(**options)(function)
    dispatcher._cache = Cache(function, FOLDER)  # what njit(cache=True) sets, to Numba's own
    return dispatcher
