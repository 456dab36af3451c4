"""Time calls of one PyTorch module, at sizes from programs, with and without `rnnkit.torch.accelerate`.

Both modules run in one process in turn, in many short windows; the minimum of each counts. A training step is a
forward and the backward of the sum of its output.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from itertools import product
from time import perf_counter
from typing import Any, NamedTuple

_WINDOW = 2e-3  # seconds
_LEAST_WINDOWS = 5
_COLD = 10e-3  # for shorter calls: the first call after another program takes 0.3 to 0.5 ms more (Zen 5)
_CLOSE = 1e-4  # of the largest value
_WORST = 10
_LAYERS = {"1": {}, "2": {"num_layers": 2}, "bi": {"bidirectional": True}}


class Call(NamedTuple):
    """A module and the sizes of its call; input and hidden size are equal."""

    mode: str
    seq_len: int
    batch_size: int
    hidden_size: int
    layers: str  # a key of _LAYERS
    pass_name: str  # infer or train

    @property
    def name(self) -> str:
        """Return the name for patterns and the report."""
        sizes = f"t{self.seq_len}-n{self.batch_size}-h{self.hidden_size}-l{self.layers}"
        return f"{self.mode.lower()}-{sizes}/{self.pass_name}"


_STEPS, _ROWS, _SIZES = (1, 5, 20, 100), (1, 8, 32), (16, 32, 64, 100, 128, 256, 512)
CASES = tuple(Call(*one) for one in product(("GRU", "LSTM", "RNN"), _STEPS, _ROWS, _SIZES, _LAYERS, ("infer", "train")))


class Row(NamedTuple):
    """Seconds of a call of PyTorch's module and of the accelerated one."""

    call: Call
    threads: int
    plain: float
    own: float

    @property
    def ratio(self) -> float:
        """How many times as long PyTorch takes."""
        return self.plain / self.own

    def __str__(self) -> str:
        times = f"PyTorch {self.plain * 1e6:10.1f} us  rnnkit {self.own * 1e6:10.1f} us"
        return f"{self.call.name:34} {self.threads} threads  {times}  {self.ratio:6.2f}x"


def run(pattern: str, threads: list[int], seconds: float) -> list[Row]:
    """Time the calls whose names match one of the patterns; print each, then how many are slower than PyTorch's own,
    and the worst."""
    calls = {call.name: call for call in CASES}
    rows = timed(calls, pattern, threads, lambda call, count: measure(call, count, seconds))
    worst = sorted(rows, key=lambda row: row.ratio)
    print(f"{sum(row.ratio < 1 for row in rows)} of {len(rows)} below 1.0")
    for row in worst[:_WORST]:
        print(row)
    return rows


def measure(call: Call, threads: int, seconds: float) -> Row:
    """Time one call of both modules, which must have the same results."""
    import torch
    from torch import nn

    from rnnkit.torch import accelerate

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    size = call.hidden_size
    plain = getattr(nn, call.mode)(size, size, **_LAYERS[call.layers])
    own = copy.deepcopy(plain)
    accelerate(own)
    x = torch.randn(call.seq_len, call.batch_size, size)
    steps = [_step(torch, module, x, call.pass_name) for module in (plain, own)]
    expected, found = (step() for step in steps)
    check_close(found, expected, own, plain)
    return Row(call, threads, *least_seconds(steps, seconds))


def check_close(found: Any, expected: Any, own: Any, plain: Any) -> None:
    """Raise unless outputs of two modules, and the gradients of their parameters, are the same but for rounding."""
    import torch

    gradients = [(one.grad, other.grad) for one, other in zip(own.parameters(), plain.parameters(), strict=True)]
    for one, other in (found, expected), *(pair for pair in gradients if pair[1] is not None):
        torch.testing.assert_close(one, other, rtol=0, atol=_CLOSE * other.abs().max().item())


def timed(cases: dict[str, Any], pattern: str, threads: list[int], measure: Callable[..., Any]) -> list[Any]:
    """Measure the cases, by name, that match one of the patterns, with each number of threads, and print each row."""
    rows = []
    for count in threads:
        for name, case in cases.items():
            if any(fnmatchcase(name, one) for one in pattern.split(",")):
                rows.append(measure(case, count))
                print(rows[-1], flush=True)
    return rows


def least_seconds(steps: list[Callable[[], Any]], seconds: float) -> list[float]:
    """Return the minimum seconds of each step; the steps run in turn."""
    least = [float("inf")] * len(steps)
    counts = [_count(step) for step in steps]
    for _ in _rounds(seconds):
        for which, (step, count) in enumerate(zip(steps, counts, strict=True)):
            if least[which] < _COLD:
                step()  # bring its code and data back into the caches
            least[which] = min(least[which], _window(step, count) / count)
    return least


def _step(torch: Any, module: Any, x: Any, pass_name: str) -> Callable[[], Any]:
    def infer() -> Any:
        with torch.no_grad():
            return module(x)[0]

    def train() -> Any:
        y, _ = module(x)
        y.sum().backward()
        return y

    return infer if pass_name == "infer" else train


def _count(step: Callable[[], Any]) -> int:
    """Return the number of calls of a window."""
    step()
    return max(1, int(_WINDOW / min(_window(step, 1) for _ in range(3))))


def _window(step: Callable[[], Any], count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        step()
    return perf_counter() - start


def _rounds(seconds: float) -> Iterator[None]:
    end, done = perf_counter() + seconds, 0
    while done < _LEAST_WINDOWS or perf_counter() < end:
        yield
        done += 1
