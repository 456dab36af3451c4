"""A child that is forked while another thread compiles or imports works: it never waits for a lock that nobody opens."""

import os
import subprocess
import sys

import pytest

LIMIT = 500  # seconds, which only what hangs takes

FORK = """
import os, signal, sys, threading
import numpy as np
import rnnkit

started = threading.Event()


def infer():
    net = rnnkit.RNN(3, 5, seed=0)
    return net.infer(np.ones((2, 2, 3), np.float32)).y


{watch}

thread = threading.Thread(target=infer)
thread.start()
started.wait()
child = os.fork()
if child == 0:
    signal.alarm({limit})  # ends a child that hangs
    os._exit(0 if np.isfinite(infer()).all() else 1)
thread.join()
assert os.waitpid(child, 0)[1] == 0, "the child hung or failed"
"""

# The thread is in the middle of importing the kernels.
IMPORTING = """
import importlib.abc


class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "rnnkit.kernels.loop" and not started.is_set():
            started.set()
            threading.Event().wait(1)


sys.meta_path.insert(0, Slow())
"""

# The thread is in the middle of compiling them.
COMPILING = """
from numba.core import event


class Listener(event.Listener):
    def on_start(self, found):
        if not started.is_set():
            started.set()
            threading.Event().wait(1)

    def on_end(self, found):
        pass


import rnnkit._cpu
event.register("numba:compile", Listener())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.parametrize("watch", [IMPORTING, COMPILING], ids=["importing", "compiling"])
def test_a_child_forked_under_way_works(tmp_path, watch):
    program = FORK.format(watch=watch, limit=LIMIT)
    folder = {"NUMBA_CACHE_DIR": str(tmp_path)} if watch is COMPILING else {}
    run = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | folder, capture_output=True, text=True, timeout=2 * LIMIT,
        check=False,
    )
    assert run.returncode == 0, run.stderr
