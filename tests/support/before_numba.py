"""What Numba and BLAS read of the environment when they are imported; worker processes and children inherit it."""

import os
import tempfile

from cores import num_cores


def _has_a_cache():
    """Whether kernels can be kept: in the user's folder of caches, or in the next one above it that is there."""
    named = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    while not os.path.exists(named):
        named = os.path.dirname(named)
    return os.access(named, os.W_OK)


# Without one every process would compile anew, and warn. It goes with the run.
if not _has_a_cache():
    _CACHE = tempfile.TemporaryDirectory(prefix="rnnkit-tests-")
    os.environ["NUMBA_CACHE_DIR"] = _CACHE.name
# Tests of threads set 2 on one core, too.
os.environ.setdefault("NUMBA_NUM_THREADS", str(max(2, num_cores())))
# Worker processes run side by side: one thread each for what BLAS and PyTorch do.
os.environ.setdefault("OMP_NUM_THREADS", "1")
