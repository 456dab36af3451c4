"""The same bits at any number of threads, from several Python threads and in a forked child."""

import os
import subprocess
import sys
from functools import cache

import pytest
from combinations import nightly
from problems import CELLS
from repository import SUPPORT

DIGEST = SUPPORT / "digest.py"
HANG = 1800  # seconds: a child takes 10 to 60; on a machine busy with ten times as much it is slow, but does not hang


def run(*arguments, **environment):
    """What a Python process prints; one that fails or hangs raises here."""
    options = dict(env=os.environ | environment, capture_output=True, text=True, timeout=HANG, check=False)
    done = subprocess.run([sys.executable, *arguments], **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digests(how, cells, **environment):
    """The lines that digest.py prints."""
    return run(DIGEST, how, *cells, **environment).split()


@cache
def expected(*cells):
    found = digests("plain", cells, NUMBA_NUM_THREADS="1")
    assert len(set(found)) == len(found), "two problems have one digest: they can not tell results apart"
    return found


SOME = "tanh", "lstm-projected-clipped", "gru"
WAYS = [("threads", "2", SOME), ("fork", "2", SOME), nightly("plain", "2", CELLS)]
WAYS += [nightly(how, threads, CELLS) for threads in ("2", "1") for how in ("threads", "fork")]


@pytest.mark.cores(2)
@pytest.mark.parametrize(("how", "threads", "cells"), WAYS)
def test_bits_do_not_depend_on_threads_and_processes(how, threads, cells):
    assert digests(how, cells, NUMBA_NUM_THREADS=threads) == expected(*cells)


ANEW = """
import sys
import numpy as np
import rnnkit

desc = rnnkit.RNNDescriptor("lstm", 3, 5)
x, zeros = np.ones((1, 2, 3), np.float32), np.zeros((1, 2, 5), np.float32)
plan = rnnkit.prepare(desc, rnnkit.init_weights(desc, seed=0))
expected = plan.infer(x).y[0]
for name in [name for name in sys.modules if name.startswith("rnnkit")]:
    del sys.modules[name]
assert __import__("rnnkit") is not rnnkit
assert np.array_equal(plan.step(x[0], zeros, zeros).y, expected)  # a kernel that is compiled, or loaded, only now
"""


def test_kernels_find_their_tiles_after_a_second_import():
    """An absent tile function ends the process, hence one of its own."""
    assert run("-c", ANEW) == ""


IN_PLACE = """
import numpy as np, rnnkit
from rnnkit_kernels.machine import tiles
compiled, compile = [], tiles._compile
tiles._compile = lambda like, columns, table: (compiled.append(type(like).__name__), compile(like, columns, table))
net = rnnkit.GRU(3, 5, seed=0)
for steps in (30, 1, 1):
    result = net.forward(np.ones((steps, 20, 3), np.float32))
    net.backward(result.workspace, result.y)
    print(*sorted(compiled))
    compiled.clear()
"""


def test_tiles_of_weights_in_place_are_compiled_on_first_use():
    assert run("-c", IN_PLACE) == "ndarray ndarray\nInColumns InRows\n\n"
