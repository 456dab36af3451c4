"""The cores of this machine: tests side by side have one each, a test of threads or of time has all of them."""

import os
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # no POSIX: nothing is shared out, and tests of time may be disturbed
    fcntl = None


def num_cores():
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


class Cores:
    """Two file locks that all test processes of this user share, those of another clone too.

    Every test takes the first lock before the second and gives it back at once. A test that waits for all cores keeps
    the first until the others have ended, so that no new one begins.
    """

    def __init__(self, folder=None):
        folder = Path(folder or tempfile.gettempdir())
        user = getattr(os, "getuid", int)()
        self._queue, self._cores = (folder / f"rnnkit-tests-{user}-{name}.lock" for name in ("queue", "cores"))

    @contextmanager
    def taken(self, alone):
        """Hold all cores, or one among others, who do the same."""
        if fcntl is None:
            yield
            return
        with ExitStack() as held:
            with _locked(self._queue, fcntl.LOCK_EX):
                held.enter_context(_locked(self._cores, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
            yield


@contextmanager
def _locked(path, kind):
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, kind)
        yield
    finally:
        os.close(file)
