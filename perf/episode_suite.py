"""Time training steps over sequences of several episodes: one call of `rnnkit.torch.LSTM` with resets, against
PyTorch's module in a loop over the steps that zeroes the states, plain or compiled.

All run in one process in turn, in many short windows; the minimum of each counts. A training step is a forward
and the backward of the sum of its output.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

from perf.call_suite import check_close, least_seconds, timed

_STEPS, _INPUT = 128, 64
COMPILED = "torch-compiled"


class Episodes(NamedTuple):
    """A batch of sequences; episodes end at random, after so many steps on average."""

    batch_size: int
    hidden_size: int
    mean_length: int

    @property
    def name(self) -> str:
        """Return the name for patterns and the report."""
        return f"lstm-n{self.batch_size}-h{self.hidden_size}-e{self.mean_length}"


CASES = tuple(Episodes(*one) for one in product((1, 8, 64), (64, 256, 512), (5, 20, 100)))


class Row(NamedTuple):
    """Seconds of a training step of the loop and of the one call."""

    case: Episodes
    threads: int
    loop: float
    own: float

    def __str__(self) -> str:
        times = f"loop {self.loop * 1e6:10.1f} us  rnnkit {self.own * 1e6:10.1f} us"
        return f"{self.case.name:20} {self.threads} threads  {times}  {self.loop / self.own:6.2f}x"


def run(pattern: str, threads: list[int], seconds: float, compiled: bool) -> list[Row]:
    """Time the cases whose names match one of the patterns, and print each."""
    cases = {case.name: case for case in CASES}
    return timed(cases, pattern, threads, lambda case, count: measure(case, count, seconds, compiled))


def measure(case: Episodes, threads: int, seconds: float, compiled: bool = False) -> Row:
    """Time a training step of both, which must have the same results."""
    import torch
    from torch import nn

    from rnnkit.torch import accelerate

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    plain = nn.LSTM(_INPUT, case.hidden_size)
    own = copy.deepcopy(plain)
    accelerate(own)
    x = torch.randn(_STEPS, case.batch_size, _INPUT)
    resets = (torch.rand(_STEPS, case.batch_size) < 1 / case.mean_length).float()
    through = torch.compile(_loop) if compiled else _loop
    steps = [_step(lambda: through(plain, x, resets)), _step(lambda: own(x, resets=resets)[0])]
    expected, found = (step() for step in steps)
    check_close(found, expected, own, plain)
    return Row(case, threads, *least_seconds(steps, seconds))


def _loop(module: Any, x: Any, resets: Any) -> Any:
    """Return the outputs of all steps, by a loop as programs write it."""
    import torch

    outputs, h = [], x.new_zeros(1, x.shape[1], module.hidden_size)
    states = h, h
    for t in range(len(x)):
        kept = (1 - resets[t]).view(1, -1, 1)
        y, states = module(x[t : t + 1], (kept * states[0], kept * states[1]))
        outputs.append(y)
    return torch.cat(outputs)


def _step(forward: Callable[[], Any]) -> Callable[[], Any]:
    def step() -> Any:
        y = forward()
        y.sum().backward()
        return y

    return step
