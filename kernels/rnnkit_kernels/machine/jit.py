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
from .float_mode import in_default_mode
from .signals import held

_SOURCES = Path(__file__).parents[1]


def _digest():
    """Return the digest of all kernel sources, which names the folder of their machine code.

    A digest of only the function's own file would miss edits in the files of its callees.
    """
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.rglob("*.py")):
        digest.update(str(source.relative_to(_SOURCES)).encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


DIGEST = _digest()
"""Digest of all kernel sources."""
FOLDER = Folder(root(), "rnnkit", DIGEST)
# No fastmath: fused operations are written as `fma`, so that values are bit-identical in the vectorised body of a loop
# and in its scalar rest, on one thread and on many. Loops over units vectorise without it.
# error_model="numpy": the division check of the Python model would prevent vectorisation.
# _nrt=False: no reference counting. A kernel owns nothing, and counting took half of the time of a short row.
# no_*_wrapper: no entry for Python or C, and no machine code of its own: the code is linked into kernels (`linking`).
OPTIONS = {
    "error_model": "numpy",
    "boundscheck": False,
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": COMPILER,
}


_TEAM_PARAMETERS = "thread_id", "size", "sync"  # which `sync.post_call` finds by position


class _Inner(CPUDispatcher):
    """A compiled function without a wrapper for Python: without the check here, a call from Python would crash."""

    def get_call_template(self, args, kws):
        """Compile for types of arguments, for example an integer, where Numba would compile for each literal."""
        return super().get_call_template(tuple(map(types.unliteral, args)), kws)

    def compile(self, sig):
        """Compile as Numba does, but without events: those of nested compilations would be counted repeatedly."""
        args, return_type = sigutils.normalize_signature(sig)
        found = self.overloads.get(tuple(args))
        if found is None:
            found = self._compiler.compile(args, return_type)
            self.add_overload(found)
        return found.entry_point

    def __call__(self, *arguments):
        raise TypeError(f"{self.__name__} is for kernels only: it is compiled without an entry for Python")


class _Kernel(CPUDispatcher):
    """A compiled function that Python calls."""

    def compile(self, sig):
        """Compile as Numba does, but without garbage collection, which takes a tenth of the time; signals wait.

        This is done under Numba's lock, which a fork waits for: no child starts with its garbage collector disabled.
        """
        with held(), global_compiler_lock:
            collects = gc.isenabled()
            try:
                gc.disable()
                return super().compile(sig)
            except CellError as error:  # without Numba's traceback, which is pages long
                raise error.with_traceback(None) from None
            finally:
                if collects:
                    gc.enable()


class TeamKernel(_Kernel):
    """A kernel that every thread of a team runs; `team` passes the thread's number, the team's size and `sync`."""

    def __call__(self, *arguments):
        raise TypeError(f"{self.__name__} is for a team of threads; call thread_pool.run({self.__name__}, work, ...)")


def inner(function, **options):
    """Decorate a function that only kernels call: it is compiled as a part of each kernel."""
    dispatcher = numba.njit(**OPTIONS | options)(function)
    dispatcher.__class__ = _Inner
    return dispatcher


def kernel(function, computes=True):
    """Decorate a function that Python calls: it is compiled on first use, cached on disk under the digest of all kernel
    sources, and runs without the GIL.

    A function whose last parameters are `thread_id, size, sync` is run by a team. One that `computes` runs in the
    default floating-point mode.
    """
    names = tuple(inspect.signature(function).parameters)
    runs_in_team = names[-len(_TEAM_PARAMETERS) :] == _TEAM_PARAMETERS
    if "thread_id" in names and not runs_in_team:
        expected = "thread_id, size and sync must be the last parameters, in this order"
        raise TypeError(f"{function.__name__}: {expected}, got {', '.join(names)}")
    whole = in_default_mode(function, inner(function)) if computes else function
    dispatcher = numba.njit(**OPTIONS | {"no_cpython_wrapper": False, "nogil": True})(whole)
    dispatcher.__class__, dispatcher.py_func = TeamKernel if runs_in_team else _Kernel, function
    dispatcher._cache = Cache(function, FOLDER)  # where njit(cache=True) puts Numba's own
    return dispatcher
