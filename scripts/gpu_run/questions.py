"""What only a device can tell: each experiment for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import cupy
import numpy as np
import torch

import rnnkit
from gpu_run.here import Here, host_seconds, medians, seconds_of
from perf import baselines
from perf.baselines import torch_module
from perf.cases import Case, Problem
from rnnkit.cuda import context, cudnn

# H, T, N, and what the weights are multiplied by
SMALL_LAYERS = (16, 50, 4, 1), (128, 50, 8, 1), (128, 50, 8, 4), (128, 1000, 8, 1), (128, 50, 256, 1)


def run(here: Here) -> None:
    for experiment in (_repeats, _small_layers, _cost_of_dropout, _lengths, _graph):
        with here.trying(experiment.__name__[1:]):
            experiment(here)


def _training(mode: str, steps: int, batch: int, hidden: int) -> Any:
    case = Case("question", rnnkit.RNNDescriptor(mode, hidden, hidden), steps, batch)
    return baselines.prepare(baselines.RNNKIT, case, "train", 1, "cuda")


def _repeats(here: Here) -> None:
    """Whether every training step is bit-identical."""
    for mode, hidden in (("lstm", 512), ("gru", 512), ("lstm", 64)):
        step = _training(mode, *map(here.smaller, (50, 32, hidden)))
        first, different = step.results(step.run()), 0
        for _ in range(50):
            found = step.results(step.run())
            different += any(not np.array_equal(found[name], one) for name, one in first.items() if one is not None)
        here.add(f"repeats, {mode}, H={hidden}", different_of_50=different)


def _small_layers(here: Here) -> None:
    """In float32: error and time of the algorithm for small layers, beside the standard one and float64."""
    for mode in ("lstm", "gru", "rnn_tanh"):
        for hidden, steps, batch, scale in SMALL_LAYERS:
            steps, batch, hidden = map(here.smaller, (steps, batch, hidden))
            given = _problem(mode, hidden, steps, batch, scale)
            expected = _gradients_of_torch(given, torch.float64, "cpu")
            facts = {"float32 on the CPU": _errors(_gradients_of_torch(given, torch.float32, "cpu"), expected)}
            facts["PyTorch"] = _errors(_gradients_of_torch(given, torch.float32, here.device), expected)
            runs = {}
            for name, number in (("standard", cudnn.STANDARD), ("small", cudnn.PERSIST_STATIC_SMALL_H)):
                with _algorithm(number):
                    facts[name] = _errors(_gradients(given), expected)
                runs[name] = partial(_with_algorithm, number, partial(_gradients, given, False))
            here.add(
                f"small layers, {mode}, H={hidden}, T={steps}, N={batch}, weights*{scale}",
                **facts,
                **medians(runs, rounds=3),
            )


def _problem(mode: str, hidden: int, steps: int, batch: int, scale: float) -> Problem:
    desc, rng = rnnkit.RNNDescriptor(mode, hidden, hidden), np.random.default_rng(0)
    x, dy = (rng.standard_normal((steps, batch, hidden), np.float32) for _ in range(2))
    w = (rnnkit.init_weights(desc, seed=0) * np.float32(scale)).astype(np.float32)
    return Problem(desc, w, x, None, None, None, dy)


def _gradients(given: Problem, on_host: bool = True) -> list[Any]:
    """y, dx and dw of rnnkit."""
    w, x, dy = map(cupy.asarray, (given.w, given.x, given.dy))
    forward = rnnkit.forward(given.desc, w, x)
    gradients = rnnkit.backward(given.desc, w, forward.workspace, dy)
    found = [forward.y, gradients.dx, gradients.dw]
    return [one.get() for one in found] if on_host else found


def _gradients_of_torch(given: Problem, dtype: torch.dtype, device: str) -> list[np.ndarray]:
    torch.backends.cudnn.allow_tf32 = False
    module = torch_module(torch, given).to(device, dtype)
    x = torch.tensor(given.x, dtype=dtype, device=device, requires_grad=True)
    y = module(x)[0]
    y.backward(torch.tensor(given.dy, dtype=dtype, device=device))
    dw = torch.cat([getattr(module, block.name).grad.reshape(-1) for block in rnnkit.weight_layout(given.desc)])
    return [one.detach().cpu().numpy() for one in (y, x.grad, dw)]


def _errors(found: list[np.ndarray], expected: list[np.ndarray]) -> str:
    """Relative errors of y, dx and dw in the Euclidean norm."""
    wide = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(found, expected, strict=True)]
    return " ".join(f"{np.linalg.norm(a - b) / np.linalg.norm(b):.1e}" for a, b in wide)


def _with_algorithm(number: int, run: Callable[[], Any]) -> Any:
    with _algorithm(number):
        return run()


@contextmanager
def _algorithm(number: int) -> Iterator[None]:
    """Choose this algorithm for every network."""
    before, context.Context._algorithm = context.Context._algorithm, lambda *_: number
    try:
        yield
    finally:
        context.Context._algorithm = before


def _cost_of_dropout(here: Here) -> None:
    """rnnkit seeds the generator anew in each forward; PyTorch continues."""
    steps, batch, hidden = map(here.smaller, (50, 64, 256))
    x, runs = np.ones((steps, batch, hidden), np.float32), {}
    own, given = cupy.asarray(x), torch.tensor(x, device=here.device)
    for dropout in (0.0, 0.5):
        desc = rnnkit.RNNDescriptor("lstm", hidden, hidden, num_layers=2, dropout=dropout)
        w = cupy.asarray(rnnkit.init_weights(desc, seed=0))
        runs[f"rnnkit {dropout}"] = partial(rnnkit.forward, desc, w, own, seed=1)
        runs[f"torch {dropout}"] = partial(torch.nn.LSTM(hidden, hidden, 2, dropout=dropout).to(here.device), given)
    here.add("cost of dropout", **medians(runs))


def _lengths(here: Here) -> None:
    """A batch of different lengths, which rnnkit packs, beside the full one and beside PyTorch's packed one."""
    steps, batch, hidden = map(here.smaller, (200, 32, 256))
    case = Case("question", rnnkit.RNNDescriptor("lstm", hidden, hidden), steps, batch, shortest=1 + steps // 10)
    runs = {
        "rnnkit, full": baselines.prepare(baselines.RNNKIT, case._replace(shortest=None), "infer", 1, "cuda").run,
        "rnnkit, lengths": baselines.prepare(baselines.RNNKIT, case, "infer", 1, "cuda").run,
        "torch, packed": baselines.prepare("torch", case, "infer", 1, here.device).run,
    }
    here.add("lengths", **medians(runs), **{f"{name} host us": host_seconds(one) * 1e6 for name, one in runs.items()})


def _graph(here: Here) -> None:
    """Capture an inference and a training step in CUDA graphs, and replay them on other numbers."""
    if here.stand_in:
        return
    for action in ("infer", "train"):
        desc = rnnkit.RNNDescriptor("lstm", 64, 64)
        w, rng = cupy.asarray(rnnkit.init_weights(desc, seed=0)), np.random.default_rng(0)
        numbers = [cupy.asarray(rng.standard_normal((20, 8, 64), np.float32)) for _ in range(2)]
        x, plan, dw = numbers[0].copy(), rnnkit.prepare(desc, w), cupy.zeros_like(w)

        def call(x=x, w=w, desc=desc, plan=plan, dw=dw, action=action):
            if action == "infer":
                return plan.infer(x).y
            forward = rnnkit.forward(desc, w, x)
            dw.fill(0)
            return rnnkit.backward(desc, w, forward.workspace, forward.y, dw=dw).dx

        x[...] = numbers[1]
        expected = call().get()
        x[...] = numbers[0]
        # What a graph writes must stay its own: memory of CuPy's usual pool would be given to others.
        stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
        with stream, cupy.cuda.using_allocator(pool.malloc):
            call()
            stream.synchronize()
            stream.begin_capture()
            captured = call()
            graph = stream.end_capture()
            x[...] = numbers[1]
            graph.launch()
            stream.synchronize()
            same = bool(np.array_equal(captured.get(), expected))
            times = {"graph_us": seconds_of(graph.launch, 50) * 1e6, "call_us": seconds_of(call, 50) * 1e6}
        here.add(f"graph, {action}", same=same, **times, ok=same)
