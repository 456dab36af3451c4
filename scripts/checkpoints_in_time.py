"""Measure the cost of gradient checkpointing: training steps with and without it, in processes that run in turn.

Prints the bytes of both workspaces and, for each number of threads, the ratio of the times pair by pair (min, median,
max): python scripts/checkpoints_in_time.py --pairs 9
"""

import argparse
import subprocess
import sys
from statistics import median
from time import perf_counter

import numba
import numpy as np

import rnnkit


def time_steps(args):
    """Print the median seconds of a step, forward and backward."""
    numba.set_num_threads(args.threads)
    net = rnnkit.LSTM(args.hidden_size, args.hidden_size, seed=0)
    x = np.random.default_rng(0).standard_normal((args.seq_len, args.batch_size, args.hidden_size), np.float32)
    dw, workspace, times = np.zeros_like(net.weights), None, []
    for _ in range(args.steps + 1):  # the first one compiles, and allocates
        start = perf_counter()
        workspace = net.forward(x, workspace=workspace, checkpoint_steps=args.checkpoint_steps).workspace
        net.backward(workspace, x, dw=dw)
        times.append(perf_counter() - start)
    print(median(times[1:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seq-len", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint-steps", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        return time_steps(args)
    desc, kept = rnnkit.RNNDescriptor("lstm", args.hidden_size, args.hidden_size), round(args.seq_len**0.5)
    nbytes = [rnnkit.workspace_nbytes(desc, args.seq_len, args.batch_size, checkpoint_steps=k) for k in (None, kept)]
    print("{:,.0f} MiB, with checkpoints {:,.0f} MiB".format(*(one / 2**20 for one in nbytes)))
    for threads in (1, 2):
        command, ratios = [sys.executable, __file__, *sys.argv[1:], f"--threads={threads}"], []
        for _ in range(args.pairs):
            pair = command, [*command, f"--checkpoint-steps={kept}"]
            whole, parts = (float(subprocess.check_output(one, text=True)) for one in pair)
            ratios.append(parts / whole)
        least, middle, most = min(ratios), median(ratios), max(ratios)
        print(f"{threads} threads: {middle:.2f} ({least:.2f} to {most:.2f}) times as long", flush=True)
    return None


if __name__ == "__main__":
    main()
