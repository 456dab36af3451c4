"""What a first call costs, each figure from a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory

_IMPORT = """
import time
start = time.perf_counter()
import numpy
middle = time.perf_counter()
import rnnkit
print(time.perf_counter() - middle)
"""

_FIRST_CALL = """
import sys, time
import numpy, rnnkit
desc = rnnkit.RNNDescriptor(sys.argv[1], 64, 64)
w, x = rnnkit.init_weights(desc, seed=0), numpy.ones((8, 4, 64), numpy.float32)
start = time.perf_counter()
if sys.argv[2] == "infer":
    rnnkit.prepare(desc, w).infer(x)
else:
    result = rnnkit.forward(desc, w, x)
    rnnkit.backward(desc, w, result.workspace, result.y)
print(time.perf_counter() - start)
"""

_PROCESSES = 5  # of a quick figure; a cold cache is measured once


def startup(modes: list[str]) -> None:
    """Print the time of `import rnnkit` beyond NumPy's, and of each mode's first call with a cold and a warm cache."""
    seconds = median(_fresh_process(_IMPORT) for _ in range(_PROCESSES))
    print(f"import rnnkit, beyond numpy: {seconds:.3f} s", flush=True)
    for mode in modes:
        for pass_name in ("infer", "train"):
            with TemporaryDirectory() as folder:
                cold = _fresh_process(_FIRST_CALL, mode, pass_name, cache=folder)
                warm = median(_fresh_process(_FIRST_CALL, mode, pass_name, cache=folder) for _ in range(_PROCESSES))
            print(f"first call, {mode}/{pass_name}: cold cache {cold:.2f} s, warm cache {warm:.2f} s", flush=True)


def _fresh_process(program: str, *arguments: str, cache: str | None = None) -> float:
    """Run a program that prints seconds; one that fails raises here."""
    environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)
