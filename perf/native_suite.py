"""Time a step of a network in C and in a compiled loop, beside a step of a plan, a whole sequence of a plan, and a step
of ONNX Runtime.

One sequence, one thread. The C file runs a thousand steps in a call. All run in one process in turn, in many short
windows; the minimum of each counts. Outputs of the C file are compared with the plan's, every bit.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rnnkit
from perf import baselines, cases
from perf.call_suite import least_seconds, timed
from perf.report import ReportError
from rnnkit.native.check import FLAGS

_STEPS = 1000


class Network(NamedTuple):
    """A network of one layer with as many inputs as units, or a single input."""

    mode: str
    hidden_size: int

    @property
    def name(self) -> str:
        """Return the name for patterns and the report."""
        return f"{self.mode}-h{self.hidden_size}"


CASES = tuple(Network(*one) for one in product(("lstm", "gru", "rnn_tanh"), (8, 16, 32, 64, 128, 256)))


class Row(NamedTuple):
    """Seconds of a step."""

    case: Network
    c: float
    compiled: float
    sequence: float
    step: float
    onnxruntime: float

    def __str__(self) -> str:
        names = "C file", "compiled.step", "plan.infer", "plan.step", "ONNX Runtime"
        times = [f"{name} {seconds * 1e9:9.0f}" for name, seconds in zip(names, self[1:], strict=True)]
        return f"{self.case.name:14} {'  '.join(times)} ns a step"


def run(pattern: str, threads: list[int], seconds: float) -> list[Row]:
    """Time the cases whose names match one of the patterns, and print each, on one thread."""
    if 1 not in threads:
        raise ReportError(f"--suite native runs on one thread: --threads must have 1, got {threads}")
    return timed({case.name: case for case in CASES}, pattern, [1], lambda case, _: measure(case, seconds))


def measure(case: Network, seconds: float) -> Row:
    """Time a case."""
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        return _row(case, seconds)
    finally:
        numba.set_num_threads(before)


def _row(case: Network, seconds: float) -> Row:
    net = rnnkit.Network(case.mode, 1, case.hidden_size, seed=0)
    plan, x = net.prepare(), np.random.default_rng(0).standard_normal((_STEPS, 1)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        sequence_in_c, y = compiled(net, Path(folder), x)
        sequence_in_c()
        if not np.array_equal(y, plan.infer(x[:, None]).y[:, 0]):
            raise RuntimeError(f"{case.name}: outputs of the C file differ from the plan's")
        calls = [sequence_in_c, _compiled_steps(plan, x), lambda: plan.infer(x[:, None]), _step(plan, x)]
        single = cases.Case("native", net.desc, 1, 1)
        if baselines.refusal("onnxruntime", single, "step") is None:
            calls.append(baselines.prepare("onnxruntime", single, "step", threads=1).run)
        found = least_seconds(calls, seconds)
    *sequences, step = found[:4]
    return Row(case, *(one / _STEPS for one in sequences), step, found[4] if len(found) > 4 else float("nan"))


def compiled(net: Any, folder: Path, x: np.ndarray) -> tuple[Callable[[], Any], np.ndarray]:
    """Return a function that runs all steps of the network in C from its initial state, and the array that it fills."""
    source, *_ = net.export_c(folder)
    library = folder / "model.so"
    subprocess.run(["cc", *FLAGS, "-shared", "-fPIC", source, "-o", library], check=True)
    functions, desc = ctypes.CDLL(str(library)), net.desc
    y = np.empty((len(x), desc.output_size), np.float32)
    state = np.empty(desc.num_layers * (desc.output_size + desc.states_size), np.float32)

    def call() -> None:
        first, *others = (ctypes.c_void_p(array.ctypes.data) for array in (state, x, y))
        functions.model_init(first)
        functions.model_run(first, others[0], ctypes.c_size_t(len(x)), others[1], None)

    return call, y


@cache
def _loop(has_cell_state: bool) -> Callable[..., None]:
    """Return a compiled loop over the steps of x."""
    import numba

    from rnnkit import compiled

    @numba.njit
    def with_cells(handle, xs, h, c, ys):
        for t in range(len(xs)):
            compiled.step(handle, xs[t], h, c)
            ys[t] = h[-1]

    @numba.njit
    def without(handle, xs, h, c, ys):
        for t in range(len(xs)):
            compiled.step(handle, xs[t], h)
            ys[t] = h[-1]

    return with_cells if has_cell_state else without


def _compiled_steps(plan: Any, x: np.ndarray) -> Callable[[], Any]:
    desc, handle = plan.desc, plan.compiled()
    loop, y = _loop(desc.has_cell_state), np.empty((len(x), desc.output_size), np.float32)
    expected = plan.infer(x[:, None]).y[:, 0]

    def run_steps() -> None:
        h, c = np.zeros((1, desc.output_size), np.float32), np.zeros((1, desc.hidden_size), np.float32)
        loop(handle, x, h, c, y)

    run_steps()
    if not np.array_equal(y, expected):
        raise RuntimeError("outputs of compiled steps differ from the plan's")
    return run_steps


def _step(plan: Any, x: np.ndarray) -> Callable[[], Any]:
    row, states = x[:1], [None, None]

    def step() -> Any:
        y, *states[:] = plan.step(row, *states)
        return y

    return step
