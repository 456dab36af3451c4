"""Time cells of papers on the engine against torchrecurrent's cells in a PyTorch loop, with the same weights; with
torch-compiled, against the cells that TorchScript can compile.

Both run in one process in turn, in many short windows; the minimum of each counts. A training step is a forward
and the backward by the input and all weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rnnkit
from perf.call_suite import least_seconds, timed

SIZES = {"small": (50, 16, 32, 64), "medium": (50, 32, 128, 256), "large": (50, 64, 256, 512)}  # T, N, I, H
PASSES = "infer", "train"
COMPILED = "torch-compiled"
_BOUND, _COMPARED = 1e-3, 10  # relative, over the first steps: some cells amplify rounding errors


class Row(NamedTuple):
    """Seconds of one call of torchrecurrent's loop and of the engine."""

    name: str
    threads: int
    loop: float
    own: float

    def __str__(self) -> str:
        times = f"torchrecurrent {self.loop * 1e6:10.1f} us  rnnkit {self.own * 1e6:10.1f} us"
        return f"{self.name:34} {self.threads} threads  {times}  {self.loop / self.own:6.2f}x"


def names() -> list[str]:
    """Return the names of all cases, for patterns and the report."""
    from perf.torchrecurrent_cells import PEERS

    return [f"{size}/{cell}/{one}" for size in SIZES for cell in PEERS for one in PASSES]


def run(pattern: str, threads: list[int], seconds: float, scripted: bool = False) -> list[Row | str]:
    """Time the cases whose names match one of the patterns, and print each; of one that cannot be scripted, why."""
    cases = {name: name for name in names()}
    return timed(cases, pattern, threads, lambda name, count: measure(name, count, seconds, scripted))


def measure(name: str, threads: int, seconds: float, scripted: bool = False) -> Row | str:
    """Time both, after checking that their results agree."""
    import numba
    import torch

    from perf.torchrecurrent_cells import PEERS

    torch.set_num_threads(threads)
    numba.set_num_threads(threads)
    torch.manual_seed(0)
    size, cell, which = name.split("/")
    peer, (seq_len, batch_size, width, units) = PEERS[cell], SIZES[size]
    declaration = peer.kind.declaration
    theirs = peer.theirs(units if declaration.inputs else width, units, **peer.options)
    x = torch.randn(seq_len, batch_size, units if declaration.inputs else width)
    weights = {key: one.detach().numpy() for key, one in peer.weights(theirs).items()}
    net = rnnkit.Network(peer.kind, weights["weight_ih"].shape[1], units)
    for key, one in weights.items():
        net.views[f"{key}_l0"][...] = one
    given = _input(net, x.numpy())
    dy = np.random.default_rng(0).standard_normal((seq_len, batch_size, units), np.float32)
    if scripted:
        try:
            theirs = torch.jit.script(theirs)
        except (RuntimeError, TypeError, AttributeError) as error:  # raised by TorchScript for unsupported code
            return f"{name:34} torchscript: {type(error).__name__}"
    loop = _loop(peer, theirs, x, torch.from_numpy(dy), which)
    own = _engine(net, *given, dy, which)
    expected, found = loop(), own()
    error = np.abs(found - expected)[:_COMPARED].max() / np.abs(expected).max()
    if not error < _BOUND:
        raise AssertionError(f"{name}: y is {error:.1e} of the largest number off")
    return Row(name, threads, *least_seconds([loop, own], seconds))


def _input(net: Any, x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray] | None]:
    """x, with that of the step before beside it where the cell takes both, and the side inputs."""
    from examples.gallery.strongly_typed import beside_the_one_before

    x = beside_the_one_before(x) if net.desc.input_size > x.shape[2] else x
    return x, {one.name: x for one in net.desc.cell.declaration.inputs} or None


def _engine(net: Any, x: np.ndarray, inputs: Any, dy: np.ndarray, which: str) -> Callable[[], np.ndarray]:
    if which == "infer":
        plan = net.prepare()
        return lambda: plan.infer(x, inputs=inputs).y
    kept: dict[str, Any] = {"workspace": None}

    def train() -> np.ndarray:
        y, _, _, workspace = net.forward(x, inputs=inputs, workspace=kept["workspace"])
        kept["workspace"] = workspace
        net.backward(workspace, dy)
        return y

    return train


def _loop(peer: Any, theirs: Any, x: Any, dy: Any, which: str) -> Callable[[], np.ndarray]:
    import torch

    parameters = list(theirs.parameters())

    def steps(x: Any) -> Any:
        h = x.new_zeros(x.shape[1], dy.shape[2])
        states, before, y = [torch.zeros_like(h) for _ in peer.kind.declaration.states], torch.zeros_like(x[0]), []
        for row in x:
            h, states = peer.step(theirs, row, before, h, states)
            before = row
            y.append(h)
        return torch.stack(y)

    def infer() -> np.ndarray:
        with torch.inference_mode():
            return steps(x).numpy()

    def train() -> np.ndarray:
        leaf = x.detach().requires_grad_()
        y = steps(leaf)
        torch.autograd.grad(y, [leaf, *parameters], dy, allow_unused=True)
        return y.detach().numpy()

    return infer if which == "infer" else train
