"""Time what subnormal numbers slow down, in rnnkit and in PyTorch: a training step whose loss is at the last step,
beside one whose loss is over all steps; and an optimizer whose weights get no gradient any more, beside a fresh one.

All run in one process in turn, in many short windows; the minimum of each counts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from perf.call_suite import check_close, least_seconds, timed

_INPUT, _WEIGHTS, _STEPS = 16, 450_000, 2000  # of an optimizer until its moments have decayed


class Network(NamedTuple):
    """A training step of a many-to-one network."""

    kind: str
    seq_len: int
    batch_size: int
    hidden_size: int

    @property
    def name(self) -> str:
        """Return the name for patterns and the report."""
        return f"{self.kind.lower()}-t{self.seq_len}-n{self.batch_size}-h{self.hidden_size}"


class Optimizer(NamedTuple):
    """A step of an optimizer."""

    name: str


SIZES = (200, 16, 128), (1000, 8, 256)
CASES = (
    *(Network(kind, *sizes) for kind, sizes in product(("RNN", "LSTM", "GRU"), SIZES)),
    *map(Optimizer, ("adam", "momentum")),
)


class Row(NamedTuple):
    """Seconds of PyTorch and of rnnkit, without subnormal numbers and with what makes them."""

    case: Network | Optimizer
    threads: int
    torch: float
    own: float
    torch_small: float
    own_small: float

    def __str__(self) -> str:
        columns = [f"{self.case.name:20} {self.threads} threads"]
        for name, usual, small in (("torch", self.torch, self.torch_small), ("rnnkit", self.own, self.own_small)):
            columns.append(f"{name} {usual * 1e3:8.2f} -> {small * 1e3:8.2f} ms, {small / usual:5.2f}x")
        return "  ".join(columns)


def run(pattern: str, threads: list[int], seconds: float) -> list[Row]:
    """Time the cases whose names match one of the patterns, and print each."""
    return timed({case.name: case for case in CASES}, pattern, threads, lambda case, n: measure(case, n, seconds))


def measure(case: Network | Optimizer, threads: int, seconds: float) -> Row:
    """Time a case, in both engines."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    calls = _network_calls(case) if isinstance(case, Network) else _optimizer_calls(case)
    return Row(case, threads, *least_seconds(calls, seconds))


def _network_calls(case: Network) -> list[Callable[[], Any]]:
    """Return training steps of PyTorch and rnnkit with a loss over all steps, then with one at the last step."""
    import torch
    from torch import nn

    from rnnkit.torch import accelerate

    plain = getattr(nn, case.kind)(_INPUT, case.hidden_size)
    own = copy.deepcopy(plain)
    accelerate(own)
    x = torch.randn(case.seq_len, case.batch_size, _INPUT)

    def step(module: Any, last_only: bool) -> Any:
        y = module(x)[0]
        (y[-1] if last_only else y).sum().backward()
        return y

    calls = [lambda module=module, last=last: step(module, last) for last in (False, True) for module in (plain, own)]
    expected, found = calls[2](), calls[3]()
    check_close(found, expected, own, plain)
    return calls


def _optimizer_calls(case: Optimizer) -> list[Callable[[], Any]]:
    """Return steps of PyTorch's and rnnkit's optimizer on usual moments, then on those that have decayed."""
    import torch

    from rnnkit.training import SGD, Adam

    rng = np.random.default_rng(0)
    gradient, nothing = rng.standard_normal(_WEIGHTS, np.float32), np.zeros(_WEIGHTS, np.float32)
    calls: list[Callable[[], Any]] = []
    for steps in (0, _STEPS):
        w = rng.standard_normal(_WEIGHTS, np.float32)
        parameter = torch.nn.Parameter(torch.from_numpy(w.copy()))
        is_adam = case.name == "adam"
        plain = torch.optim.Adam([parameter]) if is_adam else torch.optim.SGD([parameter], 1e-3, momentum=0.9)
        own = Adam(w) if is_adam else SGD(w, momentum=0.9)
        both = partial(_torch_step, plain, parameter), partial(_own_step, own)
        for given in (gradient, *[nothing] * steps):
            for step in both:
                step(given)
        calls += [partial(step, nothing if steps else gradient) for step in both]
    return calls


def _torch_step(optimizer: Any, parameter: Any, gradient: np.ndarray) -> None:
    import torch

    parameter.grad = torch.from_numpy(gradient)
    optimizer.step()


def _own_step(optimizer: Any, gradient: np.ndarray) -> None:
    optimizer.step(gradient, 1e-3)
