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


PASSES = """
import numpy as np
import rnnkit
from rnnkit.kernels.machine import tiles

def forget():
    for table in tiles._tables.values():
        table[:] = [0] * len(table)
    tiles.ensure_compiled.cache_clear()

for options in ({"mode": "rnn_tanh"}, {"mode": "lstm"}, {"mode": "gru"}, {"mode": "gru", "reset_after": False})[:MODES]:
    for dtype in ("float32", "float64")[:DTYPES]:
        desc = rnnkit.RNNDescriptor(input_size=3, hidden_size=5, dtype=dtype, **options)
        w, x = rnnkit.init_weights(desc, seed=0), np.ones((2, 1, 3), dtype)
        plan = rnnkit.prepare(desc, w)
        plan.step(x[0], np.zeros((1, 1, 5), dtype), np.zeros((1, 1, 5), dtype) if desc.has_cell else None)
        forget()
        result = rnnkit.forward(desc, w, x)
        forget()
        rnnkit.backward(desc, w, result.workspace, result.y)
        forget()
        rnnkit.infer(desc, w, x)
        forget()
"""


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


@pytest.mark.parametrize("program", [
    pytest.param("MODES, DTYPES = 3, 1\n" + PASSES, id="each pass"), pytest.param(ANEW, id="the package imported anew"),
    nightly("MODES, DTYPES = 4, 2\n" + PASSES, id="each pass of all kinds"),
])  # fmt: skip
def test_every_kernel_finds_the_tiles_that_it_needs(program):
    """An absent tile function ends the process, hence one of its own."""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG, check=False)
    assert run.returncode == 0, run.stderr
