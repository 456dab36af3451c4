"""Show where the test time goes: `python -m pytest --durations=0 -vv | python scripts/test_seconds.py`.

Prints a table in Markdown: seconds and tests of each area, over all worker processes, set-up included.
"""

import re
import sys
from collections import Counter

# Area, and how the names of its test files begin; the first that fits.
AREAS = {
    "kernels and the CPU engine": (
        "algebra aliasing backward bits checkpoint_memory digests dropout exclusive exponential fork_locks forward "
        "golden gradcheck kernels nonfinite openmp plan_calls processes reduced_weights reference sharing steps stream "
        "team threads time_checkpoints tolerances vectorization workspace"
    ),
    "compilation and its cache": "cache jit linking own_cache warmup",
    "cells": "cell check_c derivation gallery own_cells shipped_cells slstm",
    "network, weights, files": (
        "archive checks debugging descriptor docstrings errors imports network subclasses types weights"
    ),
    "GPU": "cudnn gpu torch_gpu",
    "PyTorch": "torch",
    "interop": "interop onnx",
    "training": "training",
    "language model": "language_model main score_and_plot train_",
    "estimators": "sklearn",
    "many machines": "distributed many_machines world",
    "perf": "perf",
    "guides, mutants, the rest": "",
}


def area_of(name):
    return next(area for area, starts in AREAS.items() if name.startswith(tuple(starts.split()) or ""))


def main():
    seconds, tests = Counter(), Counter()
    for line in sys.stdin:
        if found := re.match(r"([\d.]+)s (setup|call|teardown) +tests/(?:stress/)?test_(\w+)\.py::", line):
            area = area_of(found[3])
            seconds[area] += float(found[1])
            tests[area] += found[2] == "call"
    print("| area | seconds | tests |\n|---|---|---|")
    for area in AREAS:
        print(f"| {area} | {seconds[area]:.0f} | {tests[area]} |")
    print(f"| all | {seconds.total():.0f} | {tests.total()} |")


if __name__ == "__main__":
    main()
