"""What a call does that no program runs, on NumPy arrays: its operands, and the results that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rnnkit.call.options import options_of
from rnnkit.call.side_inputs import split
from rnnkit.descriptor.states import concatenate_states, split_states
from rnnkit.jax.problem import Problem, Static
from rnnkit.network import engine
from rnnkit_kernels.machine import thread_pool


def run(problem: Problem, arrays: Sequence[np.ndarray]) -> None:
    """Run a call on its operands and results, one after the other in `arrays`."""
    count = len(problem.operands)
    with thread_pool.thread_override(problem.threads or None):
        _RUN[problem.kind](problem.static, arrays[:count], arrays[count:])


@lru_cache(256)
def _prepared(static: Static, seq_len: int, batch_size: int, threads: int) -> Any:
    """Return the `PreparedCalls` of calls without options; None if the call has some, or states of its own, or if it is
    large."""
    desc = static.running
    if desc.learned_initial_state or static.first_row or not {*static.names} <= {"w", "x", "hx", "cx", "seed"}:
        return None
    prepared, size = engine.cpu_module("prepared"), (desc, seq_len, batch_size)
    return prepared.PreparedCalls(*size, threads) if prepared.is_prepared(*size) else None


def _prepared_of(static: Static, x: np.ndarray) -> Any:
    return _prepared(static, *x.shape[:2], thread_pool.wanted_size())


def _infer(static: Static, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    given = static.named(operands)
    if static.running.draws:
        _write(static, results, *_forward_of(static, given)[:3])
    else:
        options = _options(static, given) | _sides(static, given)
        _write(static, results, *engine.infer(static.running, *_arrays(static, given), **options))


def _forward(static: Static, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    (*results, kept), given = results, static.named(operands)
    prepared = _prepared_of(static, given["x"])
    if prepared is None:
        y, hy, cy, workspace = _forward_of(static, given)
        engine.cpu_module("kept").store(workspace, "resets" in static.names, kept)
        _write(static, results, y, hy, cy)
        return
    call = prepared.take(prepared.seq_len)
    arrays = given["w"], given["x"], given.get("hx", 0), given.get("cx", 0)
    _copy(results, *call.forward(prepared.seq_len, *arrays, _seed(given)))
    kept[...] = call.ws_memory.view(np.uint8)
    prepared.shelf.give_back(call)


def _forward_of(static: Static, given: dict[str, Any]) -> engine.Forward[Any]:
    options = {"seed": _seed(given), "first_row": static.first_row} | _options(static, given) | _sides(static, given)
    return engine.forward(static.running, *_arrays(static, given), **options)


def _seed(given: dict[str, Any]) -> int | None:
    return None if "seed" not in given else int(given["seed"][0]) | int(given["seed"][1]) << 32


def _backward(static: Static, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    dy, dhy, dcy, kept, *own = operands
    given, desc = static.named(own), static.running
    w, x = given["w"], given["x"]
    prepared = _prepared_of(static, x)
    if prepared is not None:
        (dw, dx, dhx, dcx), wants_dx = results, "x" in static.wanted
        call = prepared.take(prepared.seq_len)
        call.mark_overwritten()
        call.ws_memory.view(np.uint8)[...] = kept
        dhx[...], dcx[...] = dhy, dcy
        dy = dy if dy.size else 0
        dx[...] = call.backward(prepared.seq_len, w, x, dy, dhx, dcx if dcx.size else 0, dw, wants_dx, True)
        prepared.shelf.give_back(call)
        return
    options = options_of("backward", desc, *x.shape[:2], first_row=static.first_row, **_options(static, given))
    arguments = w, x, given.get("hx"), given.get("cx"), options
    workspace = engine.cpu_module("kept").restored(desc, *arguments, "resets" in static.names, kept)
    dy = dy if "y" in static.wanted else None
    cotangents = dy, dhy, split_states(desc, dcy) if desc.has_cell_state else None
    dx, dhx, dcx, dw = engine.gradients_of(desc, w, workspace, *cotangents)
    _copy(results, dw, dx, dhx, concatenate_states(desc, dcx))


def _arrays(static: Static, given: dict[str, Any]) -> tuple[Any, ...]:
    """Return w, x, hx and cx in the engine's form."""
    desc, cx = static.running, given.get("cx")
    x, _ = split(desc, given["x"])
    return given["w"], x, given.get("hx"), None if cx is None else split_states(desc, cx)


def _sides(static: Static, given: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": split(static.running, given["x"])[1]}


def _options(static: Static, given: dict[str, Any]) -> dict[str, Any]:
    return {name: given.get(name) for name in ("lengths", "mask", "resets")} | {"initial": static.initial}


def _write(static: Static, results: Sequence[np.ndarray], y: Any, hy: Any, cy: Any) -> None:
    _copy(results, y, hy, concatenate_states(static.running, cy))


def _copy(targets: Sequence[np.ndarray], *arrays: Any) -> None:
    for target, one in zip(targets, arrays, strict=True):
        if target.size:
            target[...] = one


def _pack(static: Static, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
    """Do nothing: `infer` here reads the weights themselves."""


_RUN = {"infer": _infer, "forward": _forward, "backward": _backward, "pack": _pack}
