"""Kernels made from the equations of a cell: how fast they are beside cuDNN and beside loops over PyTorch's cells, with
and without CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cupy
import numpy as np
import torch

import rnnkit
from gpu_run.here import Here, host_seconds, medians
from rnnkit import cells
from rnnkit.cuda import cells as from_equations
from rnnkit.cuda import engine, graphs

CASES = {  # name -> cell, T, N, H, options of the descriptor
    "lstm": ("lstm", 100, 64, 512, {}),
    "gru": ("gru", 100, 64, 512, {}),
    "janet": (cells.JANET(), 100, 64, 512, {}),
    "layer norm": (cells.LayerNormLSTM(), 100, 64, 512, {}),
    "lstm, small": ("lstm", 50, 8, 128, {}),
    "lstm, large": ("lstm", 100, 256, 1024, {}),
    "lstm, tf32": ("lstm", 100, 64, 512, {"allow_tf32": True}),
}
of_cudnn = engine.engine_of


def run(here: Here) -> None:
    for name, (cell, steps, batch, hidden, options) in CASES.items():
        with here.trying(name):
            sizes = here.smaller(steps), here.smaller(batch), here.smaller(hidden)
            _case(here, name, cell, *sizes, options)


def _case(here: Here, name: str, cell: Any, steps: int, batch: int, hidden: int, options: dict[str, Any]) -> None:
    desc, rng = rnnkit.RNNDescriptor(cell, hidden, hidden, **options), np.random.default_rng(0)
    w = cupy.asarray(rnnkit.init_weights(desc, seed=0))
    x, dy = (cupy.asarray(rng.standard_normal((steps, batch, hidden), np.float32)) for _ in range(2))
    loop = _loop(here, name, hidden)
    for action in ("infer", "train"):
        call = partial(rnnkit.infer, desc, w, x) if action == "infer" else partial(_step, desc, w, x, dy)
        ways = {"equations": False, "graphs": True}
        runs = {key: partial(_by, from_equations, with_graphs, call) for key, with_graphs in ways.items()}
        if isinstance(cell, str):
            runs["cudnn"] = partial(_by, None, False, call)
        if loop is not None:
            runs["loop"] = partial(loop, torch.tensor(x.get(), device=here.device), action == "train")
        expected = [one.get() for one in runs["equations"]()]
        same = [all(map(np.array_equal, (one.get() for one in runs["graphs"]()), expected)) for _ in range(4)]
        captured = sum(one is not None for one in graphs._graphs.found.values())
        facts = {f"{key} host us": host_seconds(one) * 1e6 for key, one in runs.items()}
        sizes = {"T": steps, "N": batch, "H": hidden, "graphs kept": captured}
        here.add(f"{name}, {action}", **sizes, **medians(runs, rounds=5), **facts, ok=all(same))


def _by(module: Any, with_graphs: bool, call: Callable[[], Any]) -> Any:
    """Call with an engine, None for cuDNN, and with or without graphs."""
    engine.engine_of = of_cudnn if module is None else lambda *_: module
    before, graphs.enabled = graphs.enabled, with_graphs
    try:
        return [one for one in call() if hasattr(one, "get")]
    finally:
        engine.engine_of, graphs.enabled = of_cudnn, before


def _step(desc: rnnkit.RNNDescriptor, w: Any, x: Any, dy: Any) -> tuple[Any, ...]:
    result = rnnkit.forward(desc, w, x)
    return (result.y, *rnnkit.backward(desc, w, result.workspace, dy))


def _loop(here: Here, name: str, hidden: int) -> Any:
    """Return a loop over the steps by another library's cell, or None."""
    if name == "janet":
        try:
            import torchrecurrent
        except ImportError:
            return None
        cell = torchrecurrent.JANETCell(hidden, hidden).to(here.device)
        step = lambda x, h: (cell(x, (h[0], h[0]))[0],)  # noqa: E731
    elif name.startswith("lstm"):
        cell = torch.nn.LSTMCell(hidden, hidden).to(here.device)
        step = cell
    else:
        return None

    def run(x: Any, trains: bool) -> Any:
        with torch.set_grad_enabled(trains):
            states, ys = (torch.zeros(x.shape[1], hidden, device=here.device),) * (2 if step is cell else 1), []
            for one in x:
                states = step(one, states)
                ys.append(states[0])
            y = torch.stack(ys)
            if trains:
                y.backward(torch.ones_like(y))
        return y

    return run
