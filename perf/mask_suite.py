"""Time calls with a mask against calls with lengths that have as many steps.

Both run in one process in turn, in many short windows; the minimum of each counts. A training step is a forward and a
backward with a gradient of y.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import rnnkit
from perf.call_suite import least_seconds, timed


class Masked(NamedTuple):
    """A network and its batch; input_size is hidden_size."""

    mode: str
    seq_len: int
    batch_size: int
    hidden_size: int
    where: str  # the steps to skip: "left" of the others, or "holes" between them
    pass_name: str  # infer or train

    @property
    def name(self) -> str:
        """Return the name for patterns and the report."""
        sizes = f"t{self.seq_len}-n{self.batch_size}-h{self.hidden_size}"
        return f"{self.mode}-{sizes}-{self.where}/{self.pass_name}"


_SIZES = (20, 8, 16), (50, 16, 32), (100, 1, 64), (100, 32, 64), (50, 16, 128), (100, 64, 256), (300, 20, 512)
CASES = tuple(
    Masked(mode, *sizes, where, pass_name)
    for mode, sizes, where, pass_name in product(("lstm", "gru"), _SIZES, ("left", "holes"), ("infer", "train"))
)


class Row(NamedTuple):
    """Seconds of a call with lengths and of the same with a mask."""

    case: Masked
    threads: int
    lengths: float
    mask: float

    def __str__(self) -> str:
        times = f"lengths {self.lengths * 1e6:10.1f} us  mask {self.mask * 1e6:10.1f} us"
        return f"{self.case.name:34} {self.threads} threads  {times}  {self.mask / self.lengths:6.3f}"


def run(pattern: str, threads: list[int], seconds: float) -> list[Row]:
    """Time the cases whose names match one of the patterns, and print each."""
    cases = {case.name: case for case in CASES}
    return timed(cases, pattern, threads, lambda case, count: measure(case, count, seconds))


def measure(case: Masked, threads: int, seconds: float) -> Row:
    """Time one call of both, whose last states must be the same."""
    import numba

    before = numba.get_num_threads()
    rng, shape = np.random.default_rng(0), (case.seq_len, case.batch_size)
    net = rnnkit.Network(case.mode, case.hidden_size, case.hidden_size, seed=0)
    x, dy = (rng.standard_normal((*shape, case.hidden_size), np.float32) for _ in range(2))
    lengths = rng.integers(case.seq_len // 2, case.seq_len + 1, case.batch_size)
    lengths[0] = case.seq_len  # a mask that shortens the batch would have less to do
    place = np.arange(case.seq_len)[:, None]
    left = np.repeat(place, case.batch_size, 1) >= case.seq_len - lengths
    mask = left if case.where == "left" else rng.permuted(left, axis=0)
    alone = np.zeros_like(x)
    for n, length in enumerate(lengths):
        alone[:length, n] = x[mask[:, n], n]
    steps = [_step(net, alone, dy, case, lengths=lengths), _step(net, x, dy, case, mask=mask)]
    try:
        numba.set_num_threads(threads)
        expected, found = (step() for step in steps)
        if not np.array_equal(expected, found):
            raise AssertionError(f"{case.name}: the states after the last step are not equal")
        return Row(case, threads, *least_seconds(steps, seconds))
    finally:
        numba.set_num_threads(before)


def _step(net: Any, x: np.ndarray, dy: np.ndarray, case: Masked, **options: Any) -> Callable[[], Any]:
    def infer() -> Any:
        return net.infer(x, **options).hy

    def train() -> Any:
        result = net.forward(x, **options)
        net.backward(result.workspace, dy)
        return result.hy

    return infer if case.pass_name == "infer" else train
