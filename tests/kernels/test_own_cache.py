"""Machine code of a user's cell is kept under what it computes: warm in another process, new where that is another."""

import os
import re
import subprocess
import sys

import pytest
from messages import says

CELL = """
from typing import NamedTuple

from rnnkit.cells import Activation, cell, forward, gradient, value

FACTOR = 0.5


def bent(x):
    return FACTOR * x


most = max


@Activation.register
class Plain(NamedTuple):
    def value(self, x):
        return x

    def slope(self, y):
        return 1


@cell(gates="a")
class Mine(NamedTuple):
    last: Activation = Plain()

    @forward("a h")
    def output(self, a):
        h = value(self.last, most(bent(a), 0.125))
        return h, h

    @gradient("da")
    def back(self, dh):
        return FACTOR * dh
"""
RUN = '''
import numpy as np

import rnnkit
from rnnkit_kernels import stack


def run(kind):
    """Print what a step gives, and how often its kernel came from the disk and not."""
    desc = rnnkit.RNNDescriptor(kind, 1, 1, bias="none")
    before = stack.run_stack.stats
    hits, misses = sum(before.cache_hits.values()), sum(before.cache_misses.values())
    y = rnnkit.prepare(desc, np.ones(2, np.float32)).step(np.ones((1, 1), np.float32), None).y
    after = stack.run_stack.stats
    print(y.item(), sum(after.cache_hits.values()) - hits, sum(after.cache_misses.values()) - misses)
'''


@pytest.fixture
def start(tmp_path):
    """Start a script, or what is typed in, in a process with a folder of caches of its own."""
    path, environment = tmp_path / "script.py", {"NUMBA_CACHE_DIR": str(tmp_path / "caches"), "NUMBA_NUM_THREADS": "1"}
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | environment, text=True)

    def start(text, typed=False):
        path.write_text(text)
        with open(path) as script:
            return subprocess.Popen([sys.executable, "-" if typed else path], stdin=script, **options)

    return start


def lines_of(process):
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output.splitlines(), errors


MAIN = CELL + RUN + "run(Mine)\n"


def test_second_process_is_warm_and_an_edit_recompiles(start):
    """In `__main__`, whose classes are others in each process; two that compile at once leave one entry. A process may
    load the machine code of two cells of one name."""
    both = start(MAIN), start(MAIN)
    assert {line for process in both for line in lines_of(process)[0]} <= {"0.5 0 1", "0.5 1 0"}
    assert lines_of(start("# a comment\n" + MAIN))[0] == ["0.5 1 0"]
    assert lines_of(start(MAIN.replace("0.5", "0.25")))[0] == ["0.25 0 1"]  # a number that an equation uses
    assert lines_of(start(MAIN.replace("most = max", "most = min")))[0] == ["0.125 0 1"]  # what a name stands for
    assert lines_of(start(MAIN.replace("return x", "return 1 + x")))[0] == ["1.5 0 1"]  # its activation
    of_one_name = MAIN + (CELL + "run(Mine)\n").replace("0.5", "0.25")
    assert lines_of(start(of_one_name))[0] == ["0.5 1 0", "0.25 1 0"]


FOREIGN = """
import ctypes

most = ctypes.CDLL(None).fmaxf
most.restype, most.argtypes = ctypes.c_float, [ctypes.c_float] * 2
"""


def test_cell_with_a_foreign_function_is_not_cached(start, tmp_path):
    lines, errors = lines_of(start(MAIN.replace("most = max\n", FOREIGN) + "run(Mine)\n", typed=True))
    assert lines == ["0.5 0 1", "0.5 0 0"]
    expected = says("kernel cache: Mine", "most", "_FuncPtr").replace(r"\A", "")  # behind what warns
    assert sum(re.search(expected, line) is not None for line in errors.splitlines()) == 1
    kept = {path.name.split("-")[0] for path in (tmp_path / "caches").rglob("*.nbc")}
    assert "pack_layer" in kept and "run_stack" not in kept  # the cell is in the second alone
