"""Measure the cost of a first call, each in a fresh process: wall time, and CPU time of all threads.

On a busy machine compare CPU time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

_IMPORT = """
import time
import numpy
start, cpu = time.perf_counter(), time.process_time()
import rnnkit
print(time.perf_counter() - start, time.process_time() - cpu)
"""

_FIRST_CALL = """
import sys, time
import numpy, rnnkit
desc = rnnkit.RNNDescriptor(sys.argv[1], 64, 64)
w, x = rnnkit.init_weights(desc, seed=0), numpy.ones((8, 4, 64), numpy.float32)
start, cpu = time.perf_counter(), time.process_time()
if sys.argv[2] == "infer":
    rnnkit.prepare(desc, w).infer(x)
else:
    result = rnnkit.forward(desc, w, x)
    rnnkit.backward(desc, w, result.workspace, result.y)
print(time.perf_counter() - start, time.process_time() - cpu)
"""

_PROCESSES = 5  # repetitions of a quick figure; a cold cache is measured once


class Cost(NamedTuple):
    """Seconds of wall time and of CPU time."""

    wall: float
    cpu: float

    @classmethod
    def typical(cls, costs: list[Cost]) -> Cost:
        """Return the median of each."""
        return cls(*map(median, zip(*costs, strict=True)))

    def __str__(self) -> str:
        return f"{self.wall:.2f} s ({self.cpu:.2f} s CPU)"


def startup(modes: list[str]) -> None:
    """Print the time of `import rnnkit` beyond NumPy's, and of each mode's first call with a cold and a warm cache."""
    cost = Cost.typical([_fresh_process(_IMPORT) for _ in range(_PROCESSES)])
    print(f"import rnnkit, beyond numpy: {cost}", flush=True)
    for mode in modes:
        for pass_name in ("infer", "train"):
            with TemporaryDirectory() as folder:
                cold = _fresh_process(_FIRST_CALL, mode, pass_name, cache=folder)
                again = [_fresh_process(_FIRST_CALL, mode, pass_name, cache=folder) for _ in range(_PROCESSES)]
            warm = Cost.typical(again)
            print(f"first call, {mode}/{pass_name}: cold cache {cold}, warm cache {warm}", flush=True)


def _fresh_process(program: str, *arguments: str, cache: str | None = None) -> Cost:
    """Run a program that prints seconds of both kinds; one that fails raises here."""
    environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return Cost(*map(float, done.stdout.split()))
