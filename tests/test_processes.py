"""The same bits at any number of threads, from several Python threads and in a forked child."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from combinations import nightly
from problems import CELLS

DIGEST = Path(__file__).with_name("digest.py")
HANG = 1800  # seconds: a child takes 10 to 60; on a machine busy with ten times as much it is slow, but does not hang


def digests(how, cells, **environment):
    """The lines that digest.py prints; a child that fails or hangs raises here."""
    run = subprocess.run(
        [sys.executable, DIGEST, how, *cells],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert run.returncode == 0, f"digest.py {how} ended with {run.returncode}:\n{run.stderr}"
    return run.stdout.split()


@cache
def expected(*cells):
    found = digests("plain", cells, NUMBA_NUM_THREADS="1")
    assert len(set(found)) == len(found), "two problems have one digest: they can not tell results apart"
    return found


SOME = "tanh", "lstm-projected-clipped", "gru"


@pytest.mark.cores(2)
@pytest.mark.parametrize(("how", "threads", "cells"), [
    ("threads", "2", SOME), ("fork", "2", SOME), nightly("plain", "2", CELLS), nightly("threads", "2", CELLS),
    nightly("fork", "2", CELLS), nightly("threads", "1", CELLS), nightly("fork", "1", CELLS),
])  # fmt: skip
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


def test_kernels_find_their_tiles_where_the_package_is_imported_anew():
    """An absent tile function ends the process, hence one of its own."""
    run = subprocess.run([sys.executable, "-c", ANEW], capture_output=True, text=True, timeout=HANG, check=False)
    assert run.returncode == 0, run.stderr


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


def test_tiles_of_weights_in_place_are_compiled_for_the_first_call_that_reads_them():
    run = subprocess.run([sys.executable, "-c", IN_PLACE], capture_output=True, text=True, timeout=HANG, check=False)
    assert run.stdout == "ndarray ndarray\nInColumns InRows\n\n", run.stderr
