"""The decorators of all kernels and of what they call."""

import gc
import hashlib
import inspect
from pathlib import Path

import numba
from numba import types
from numba.core import sigutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from ..cells.rules import CellError
from .cache import Cache, Folder, root
from .compiler import COMPILER

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
# No fastmath flag at all: what may be fused is written as `fma`, so that a value has the same bits in the
# vectorised body of a loop, in its scalar rest, on one thread and on many. Loops over units vectorise without it.
# error_model="numpy": the division check of the Python model would keep loops from being vectorised.
# _nrt=False: no reference counting. A kernel owns nothing, and counting took half of the time of a short row.
# no_*_wrapper: what Python or C would call. Without it there is no machine code either, but in the kernels (`linking`).
OPTIONS = {
    "error_model": "numpy", "boundscheck": False, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
    "pipeline_class": COMPILER,
}


_OF_TEAM = "thread_id", "size", "sync"  # which `sync.post_call` finds by their places


class _Inner(CPUDispatcher):
    """A compiled function without the wrapper that Python would call; Numba itself would not notice, and crash."""

    def get_call_template(self, args, kws):
        """What a call compiles: the function for an integer, say, where Numba would do so anew for each literal."""
        return super().get_call_template(tuple(map(types.unliteral, args)), kws)

    def compile(self, sig):
        """Compile as Numba does, but for the events, which all callers' compilations, level upon level, would count."""
        args, return_type = sigutils.normalize_signature(sig)
        found = self.overloads.get(tuple(args))
        if found is None:
            found = self._compiler.compile(args, return_type)
            self.add_overload(found)
        return found.entry_point

    def __call__(self, *arguments):
        raise TypeError(f"{self.__name__} is for kernels: compiled without what Python could call")


class _Kernel(CPUDispatcher):
    """A compiled function that Python calls."""

    def compile(self, sig):
        """Compile as Numba does, while nobody looks for garbage among its objects: a tenth of the time.

        Under Numba's lock, which a fork waits for: no child begins without its garbage collector.
        """
        with global_compiler_lock:
            collects = gc.isenabled()
            try:
                gc.disable()
                return super().compile(sig)
            except CellError as error:  # it says all; the way through Numba to it is pages long
                raise error.with_traceback(None) from None
            finally:
                if collects:
                    gc.enable()


class TeamKernel(_Kernel):
    """A kernel that every thread of a team runs: `team` says which of them it is, and what they meet at."""

    def __call__(self, *arguments):
        raise TypeError(f"{self.__name__} is for a team of threads; call team.run({self.__name__}, work, ...)")


def inner(function, **options):
    """Compile `function` when a kernel that calls it is compiled, as a part of that. Only kernels call it."""
    dispatcher = numba.njit(**OPTIONS | options)(function)
    dispatcher.__class__ = _Inner
    return dispatcher


def kernel(function):
    """Compile `function` on first use, cached on disk under the digest of all kernel sources. Python calls it: it runs
    without the GIL.

    One whose last parameters are `thread_id, size, sync` is run by a team.
    """
    names = tuple(inspect.signature(function).parameters)
    runs_in_team = names[-len(_OF_TEAM) :] == _OF_TEAM
    if "thread_id" in names and not runs_in_team:
        expected = "thread_id, size and sync must be the last parameters, in this order"
        raise TypeError(f"{function.__name__}: {expected}, got {', '.join(names)}")
    dispatcher = numba.njit(**OPTIONS | {"no_cpython_wrapper": False, "nogil": True})(function)
    dispatcher.__class__ = TeamKernel if runs_in_team else _Kernel
    dispatcher._cache = Cache(function, FOLDER)  # what njit(cache=True) sets, to Numba's own
    return dispatcher
