"""Cells as users write them without rnnkit: a loop over time in PyTorch, plain or compiled, and one in Numba.

The equations of each cell are written here independently, for all three; gradients are autograd's. PyTorch's loop in
float64 is the reference for every engine. Networks have one layer, and the gates with rows of R are adjacent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rnnkit
from perf.cases import Problem
from perf.subject import Subject, named


class Equations(NamedTuple):
    """The equations of a cell, for tensors or numbers; arguments are in the order of the cell's declaration."""

    step: Callable[..., Any]  # gates, h, states, vectors -> h, states
    gate: Callable[..., Any] | None = None  # first gate, h -> it, and what R multiplies for the second gate
    start: float = 0.0  # initial value of the last state; the others start at 0


def equations_of(desc: rnnkit.RNNDescriptor, *functions: Any) -> Equations:
    """Return the equations of a network's cell."""
    return equations(*functions)[type(desc.mode).__name__]


def equations(one: Any, exp: Any, larger: Any, relu: Any, sigmoid: Any, tanh: Any) -> dict[str, Equations]:
    """Return the equations of every cell, written with these functions."""

    def lstm(i, f, g, o, h, c):
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    def peephole(i, f, g, o, h, c, p_i, p_f, p_o):
        c = sigmoid(f + p_f * c) * c + sigmoid(i + p_i * c) * tanh(g)
        return sigmoid(o + p_o * c) * tanh(c), c

    def coupled(i, g, o, h, c):
        i = sigmoid(i)
        c = (one - i) * c + i * tanh(g)
        return sigmoid(o) * tanh(c), c

    def forgotten(f, h):
        f = sigmoid(f)
        return f, f * h

    def minimal(f, n, h):
        return ((one - f) * h + f * tanh(n),)

    def independent(a, h, u):
        return (relu(a + u * h),)

    def min_gru(z, n, h):
        z = sigmoid(z)
        return ((one - z) * h + z * n,)

    def janet(f, n, h):
        return (sigmoid(f) * h + (one - sigmoid(f - one)) * tanh(n),)

    def li_gru(z, n, h):
        z = sigmoid(z)
        return (z * h + (one - z) * relu(n),)

    def update_gate(n, g, h):
        g = sigmoid(g)
        return (g * h + (one - g) * tanh(n),)

    def additive(n, i, f, h, c):
        c = sigmoid(i) * n + sigmoid(f) * c
        return tanh(c), c

    def star(z, k, h):
        k = sigmoid(k)
        return (tanh((one - k) * h + k * tanh(z)),)

    def bistable(a, c, n, h):
        c = sigmoid(c)
        return (c * h + (one - c) * tanh(n + (one + tanh(a)) * h),)

    def slstm(z, i, f, o, h, c, n, m):
        f = f + m
        m = larger(f, i)
        i, f = exp(i - m), exp(f - m)
        c, n = f * c + i * tanh(z), f * n + i
        return sigmoid(o) * c / n, c, n, m

    return {
        "OwnLSTM": Equations(lstm), "PeepholeLSTM": Equations(peephole), "CoupledLSTM": Equations(coupled),
        "MinimalGatedUnit": Equations(minimal, forgotten), "IndRNN": Equations(independent),
        "MinGRU": Equations(min_gru), "SLSTM": Equations(slstm, start=-math.inf), "JANET": Equations(janet),
        "LiGRU": Equations(li_gru), "UGRNN": Equations(update_gate), "RAN": Equations(additive),
        "STAR": Equations(star), "NBR": Equations(bistable),
    }  # fmt: skip


def recurrent_columns(desc: rnnkit.RNNDescriptor) -> slice:
    """Return the columns of the gates that have rows of R; they are adjacent."""
    own = [number for number, gate in enumerate(desc.cell.declaration.gates) if gate.multiplies is not None]
    return slice(own[0] * desc.hidden_size, (own[-1] + 1) * desc.hidden_size) if own else slice(0)


def torch_loop(given: Problem, pass_name: str, threads: int, compiled: bool = False) -> Subject:
    """The product of the input for all steps, then a loop over time; backward is autograd's."""
    import torch

    torch.set_num_threads(threads)
    forward = _torch_forward(torch, given.desc)
    forward = torch.compile(forward) if compiled else forward
    train = pass_name == "train"
    views = rnnkit.weight_views(given.desc, given.w)
    w = {name: torch.from_numpy(view).requires_grad_(train) for name, view in views.items()}
    x, dy = torch.from_numpy(given.x).requires_grad_(train), torch.from_numpy(given.dy)

    def run() -> Any:
        if not train:
            with torch.inference_mode():
                return forward(x, w)
        for array in (x, *w.values()):
            array.grad = None
        result = forward(x, w)
        result[0].backward(dy)
        return result

    def results(result: Any) -> dict[str, np.ndarray]:
        gradients = {f"d{name}": array.grad.numpy() for name, array in {"x": x, **w}.items()} if train else {}
        return _results(*(array.detach().numpy() for array in result)) | gradients

    return Subject(run, results)


def _torch_forward(torch: Any, desc: rnnkit.RNNDescriptor) -> Callable[..., Any]:
    """Return the loop: x and the weights by name -> y, h, states."""
    functions = torch.exp, torch.maximum, torch.relu, torch.sigmoid, torch.tanh
    step, gate, start = equations_of(desc, 1, *functions)
    vectors, count = desc.cell.declaration.vectors, desc.num_gates
    through = recurrent_columns(desc)
    around = through.start or 0, count * desc.hidden_size - through.stop  # columns of gates without R

    def gates(row: Any, r: Any, h: Any) -> Any:
        if r is None:
            return row.chunk(count, 1)
        if gate is None and around == (0, 0):
            return torch.addmm(row, h, r.t()).chunk(count, 1)
        if gate is None:
            parts = row[:, : through.start], torch.addmm(row[:, through], h, r.t()), row[:, through.stop :]
            return torch.cat(parts, 1).chunk(count, 1)
        (first, second), (r_first, r_second) = row.chunk(2, 1), r.chunk(2)
        first, multiplied = gate(torch.addmm(first, h, r_first.t()), h)
        return first, torch.addmm(second, multiplied, r_second.t())

    def forward(x: Any, w: dict[str, Any]) -> Any:
        r, own = w.get("weight_hh_l0"), [w[f"{vector.name}_l0"] for vector in vectors]
        bias = w["bias_ih_l0"]
        if r is not None:
            bias = bias + torch.nn.functional.pad(w["bias_hh_l0"], around)
        y, states = [], [x.new_zeros(x.shape[1], desc.hidden_size) for _ in range(1 + len(desc.states))]
        states[-1] = states[-1] + start
        for row in torch.nn.functional.linear(x, w["weight_ih_l0"], bias).unbind():
            states = step(*gates(row, r, states[0]), *states, *own)
            y.append(states[0])
        return torch.stack(y), *states

    return forward


_KERNEL = """
def kernel(gates, states, vectors, multiplied):
    for n in range(gates.shape[0]):
        for j in range(gates.shape[2]):
            {written} = function({read})
"""


def numba_loop(given: Problem) -> Subject:
    """The product of the input for all steps; then, a step, one of R and a compiled loop over the units."""
    desc, x, (step, gate, start) = given.desc, given.x, _numba_kernels(given.desc)
    steps, rows, size = len(x), x.shape[1], desc.hidden_size
    w = {name.removesuffix("_l0"): view for name, view in rnnkit.weight_views(desc, given.w).items()}
    bias, through = w["bias_ih"].copy(), recurrent_columns(desc)
    bias[through] += w.get("bias_hh", 0)
    vectors = np.array([w[vector.name] for vector in desc.cell.declaration.vectors], x.dtype).reshape(-1, size)
    parts = np.split(w["weight_hh"], 2 if gate else 1) if "weight_hh" in w else []  # by the factor that they multiply
    r = [np.ascontiguousarray(part.T) for part in parts]

    def run() -> tuple[np.ndarray, ...]:
        y, multiplied = np.empty((steps, rows, size), x.dtype), np.empty((rows, size), x.dtype)
        states = np.zeros((1 + len(desc.states), rows, size), x.dtype)
        states[-1] = start
        projected = x.reshape(steps * rows, -1) @ w["weight_ih"].T + bias
        for t, gates in enumerate(projected.reshape(steps, rows, -1)):
            units = gates.reshape(rows, -1, size), states, vectors, multiplied
            if r:
                gates[:, through.start : through.start + r[0].shape[1]] += states[0] @ r[0]
            if gate:
                gate(*units)
                gates[:, size:] += multiplied @ r[1]
            step(*units)
            y[t] = states[0]
        return y, *states

    return Subject(run, lambda result: _results(*result))


def _numba_kernels(desc: rnnkit.RNNDescriptor) -> tuple[Any, Any, float]:
    """Return the loops over the units of step and gate, and the start."""
    from numba import njit

    one, zero = desc.np_dtype.type(1), desc.np_dtype.type(0)
    larger = njit(lambda a, b: a if a > b else b)
    relu = njit(lambda a: a if a > zero else zero)
    sigmoid = njit(lambda a: one / (one + math.exp(-a)))
    step, gate, start = equations_of(desc, one, math.exp, larger, relu, sigmoid, math.tanh)
    gates = [f"gates[n, {number}, j]" for number in range(desc.num_gates)]
    states = [f"states[{number}, n, j]" for number in range(1 + len(desc.states))]
    vectors = [f"vectors[{number}, j]" for number in range(len(desc.cell.declaration.vectors))]
    through_gate = gate and _kernel(njit, gate, [gates[0], "multiplied[n, j]"], [gates[0], states[0]])
    return _kernel(njit, step, states, [*gates, *states, *vectors]), through_gate, start


def _kernel(njit: Any, function: Callable[..., Any], written: list[str], read: list[str]) -> Any:
    names = {"function": njit(function)}
    exec(_KERNEL.format(written=", ".join(written) + ",", read=", ".join(read)), names)
    return njit(names["kernel"])


def _results(y: np.ndarray, h: np.ndarray, *states: np.ndarray) -> dict[str, np.ndarray | None]:
    """Return the results under rnnkit's names."""
    last = tuple(state[None] for state in states)
    return named(y, h[None], last if len(last) > 1 else last[0] if last else None)
