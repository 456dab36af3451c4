"""Time the language model's training against the same network in PyTorch, with the same initial weights, batches,
optimizer and learning rates, and without dropout, whose masks would differ:
`python -m perf.language_model [--pairs 5] [--steps 300] [--threads 2]`

The engines train in turn, each in its own process; compilation is not timed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count, islice
from statistics import median
from typing import Any

import numpy as np

import rnnkit
from rnnkit.language_model import corpus
from rnnkit.language_model.model import TextModel
from rnnkit.language_model.settings import Settings
from rnnkit.language_model.training import BETA2, Run, learning_rate, optimizer_of

ENGINES = ("rnnkit", "torch")
WARM_UP = 30  # untimed warm-up steps


def started(settings: Settings, text: bytes) -> Run:
    """Return a run at its beginning."""
    model = TextModel.random(settings.desc, settings.seed, corpus.alphabet(text))
    return Run(model, optimizer_of(model, settings), text, settings)


def torch_advance(run: Run, text: bytes) -> Callable[[], float]:
    """Return what trains one step of a run that has not begun, in PyTorch, and gives the bits per byte.

    Parameters
    ----------
    run : Run
        Of an LSTM or GRU without dropout, with a number of steps. It is not changed.
    text : bytes
        That it trains on.
    """
    import torch
    from torch import nn

    model, settings, desc = run.model, run.settings, run.model.desc
    num_classes = len(model.alphabet) + 1
    network = {"lstm": nn.LSTM, "gru": nn.GRU}[desc.mode](desc.input_size, desc.hidden_size, desc.num_layers)
    embedding, readout = nn.Embedding(num_classes, desc.input_size), nn.Linear(desc.output_size, num_classes)
    parts = nn.ModuleList([embedding, network, readout])
    parts.to(getattr(torch, desc.dtype))
    given = rnnkit.weight_views(desc, model.parameters.network)
    with torch.no_grad():
        embedding.weight.copy_(torch.from_numpy(model.parameters.embedding))
        readout.weight.copy_(torch.from_numpy(model.parameters.output_weight))
        readout.bias.copy_(torch.from_numpy(model.parameters.output_bias))
        for name, parameter in network.named_parameters():
            parameter.copy_(torch.from_numpy(given[name]))
    matrices = [parameter for parameter in parts.parameters() if parameter.ndim == 2]
    biases = [parameter for parameter in parts.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, settings.lr, betas=(0.9, BETA2), fused=True)
    class_of = np.full(256, num_classes - 1)
    class_of[model.alphabet] = np.arange(num_classes - 1)
    rows, steps, state = corpus.rows(text, settings.batch, settings.seq_len), count(), None

    def advance() -> float:
        nonlocal state
        step = next(steps)
        inputs, targets, first = corpus.batch(rows, settings.seq_len, step)
        state = None if first else state
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = _rate(run, step)
        optimizer.zero_grad(set_to_none=True)
        y, state = network(embedding(torch.from_numpy(class_of[inputs])), state)
        state = tuple(one.detach() for one in state) if isinstance(state, tuple) else state.detach()
        wanted = torch.from_numpy(class_of[targets].ravel())
        loss = nn.functional.cross_entropy(readout(y.reshape(inputs.size, -1)), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), settings.clip)
        optimizer.step()
        return loss.item() / math.log(2)

    return advance


def _rate(run: Run, step: int) -> float:
    return learning_rate((step + 0.5) / run.num_steps, run.settings)


def timed(engine: str, settings: Settings, threads: int) -> dict[str, Any]:
    """Train all steps of the settings; return the bits per byte of each, and the bytes a second."""
    text = corpus.split(corpus.library_source()).training
    run = started(settings, text)
    if engine == "torch":
        import torch

        torch.set_num_threads(threads)
        advance = torch_advance(run, text)
    else:
        advance = iter(lambda: run.advance().bits, None).__next__
    bits = [advance() for _ in range(WARM_UP)]
    begin = time.perf_counter()
    bits += [advance() for _ in range(settings.steps - WARM_UP)]
    seconds = time.perf_counter() - begin
    return {"bits": bits, "speed": (settings.steps - WARM_UP) * run.step_bytes / seconds}


def measured(engine: str, steps: int, threads: int) -> dict[str, Any]:
    """Return what `timed` does in a process of its own."""
    command = [sys.executable, "-m", "perf.language_model", "--engine", engine, "--steps", str(steps)]
    environment = os.environ | {"NUMBA_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--threads", str(threads)], check=True, capture_output=True, env=environment)
    return json.loads(done.stdout)


def main() -> None:
    """Print the speed of both engines pair by pair, and how far their losses are apart."""
    parser = argparse.ArgumentParser(prog="python -m perf.language_model", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        print(json.dumps(timed(args.engine, Settings(steps=args.steps, dropout=0.0), args.threads)))
        return
    ratios = []
    for number in islice(count(1), args.pairs):
        own, other = (measured(engine, args.steps, args.threads) for engine in ENGINES)
        ratios.append(own["speed"] / other["speed"])
        apart = max(abs(a - b) for a, b in zip(own["bits"], other["bits"], strict=True))
        print(
            f"pair {number}: rnnkit {own['speed']:,.0f} bytes/s, torch {other['speed']:,.0f} bytes/s, "
            f"ratio {ratios[-1]:.2f}; losses at most {apart:.4f} bits apart, in the last 30 steps on average "
            f"{np.mean(own['bits'][-30:]) - np.mean(other['bits'][-30:]):+.4f}",
            flush=True,
        )
    print(f"ratio: min {min(ratios):.2f}, median {median(ratios):.2f}, max {max(ratios):.2f}")


if __name__ == "__main__":
    main()
