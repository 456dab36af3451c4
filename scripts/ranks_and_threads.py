"""Time whole training steps on one machine: two ranks of one thread against one process of two threads, run in turn.

Prints the ratio of the step times pair by pair (min, median, max), and the share that the ranks spend in Allreduce when
they enter it together. Needs the extra mpi: python scripts/ranks_and_threads.py --pairs 5
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np

import rnnkit
from rnnkit.distributed import allreduce_gradients, broadcast_weights, shard, world
from rnnkit.training import Adam


class Case(NamedTuple):
    layers: int
    hidden_size: int
    batch_size: int  # of all ranks together
    seq_len: int = 64


CASES = {
    "tiny": Case(1, 8, 4, 3),
    "0.5M": Case(1, 256, 64),
    "0.5M, small batch": Case(1, 256, 16),
    "5M": Case(2, 560, 16),
    "20M": Case(2, 1120, 16),
}


def time_steps(case, steps):
    """Print the median seconds of a step, and of its Allreduce, of this process's share."""
    comm = world()
    desc = rnnkit.RNNDescriptor("lstm", case.hidden_size, case.hidden_size, case.layers)
    w = rnnkit.init_weights(desc, seed=0)
    broadcast_weights(w, comm)
    dw, optimizer = np.zeros_like(w), Adam(w)
    x = np.random.default_rng(0).standard_normal((case.seq_len, case.batch_size, case.hidden_size), np.float32)
    x = x[:, shard(case.batch_size, comm)].copy()
    workspace, times = None, []
    for _ in range(steps + 2):  # the first two compile, and allocate
        start = perf_counter()
        y, _, _, workspace = rnnkit.forward(desc, w, x, workspace=workspace)
        dw[:] = 0
        rnnkit.backward(desc, w, workspace, y, dw=dw)
        if comm:
            comm.Barrier()  # waiting for the other rank is not communication
        reduce = perf_counter()
        allreduce_gradients(dw, comm)
        reduced = perf_counter()
        optimizer.step(dw, 1e-3)
        times.append((perf_counter() - start, reduced - reduce))
    if not comm or comm.rank == 0:
        print(json.dumps([median(column) for column in zip(*times[2:], strict=True)]))


def measure(name, steps, ranks, threads):
    mpiexec = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)] if ranks > 1 else []
    command = [*mpiexec, sys.executable, __file__, "--steps", str(steps), "--time", name]
    environment = os.environ | {"NUMBA_NUM_THREADS": str(threads), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return json.loads(subprocess.check_output(command, env=environment, text=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--time", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.time:
        return time_steps(CASES[args.time], args.steps)
    for name in args.case or list(CASES)[1:]:
        pairs = [(measure(name, args.steps, 2, 1), measure(name, args.steps, 1, 2)) for _ in range(args.pairs)]
        ratios = sorted(ranks[0] / threads[0] for ranks, threads in pairs)
        share = median(ranks[1] / ranks[0] for ranks, _ in pairs)
        times = [f"{1e3 * median(run[0] for run in runs):.1f} ms" for runs in zip(*pairs, strict=True)]
        print(
            f"{name}: 2 ranks {times[0]}, 2 threads {times[1]} a step; ranks / threads "
            f"{ratios[0]:.2f} {median(ratios):.2f} {ratios[-1]:.2f}; Allreduce {share:.1%} of a step",
            flush=True,
        )


if __name__ == "__main__":
    main()
