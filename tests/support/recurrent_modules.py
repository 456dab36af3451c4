"""Modules of cells, each with its equations as a loop over the steps in PyTorch."""

from typing import NamedTuple

import torch
from combinations import nightly
from torch import nn
from torch.nn.functional import softplus

from rnnkit.cells import SLSTM, Gate, IndRNN, MinGRU, Tanh, cell, forward, sigmoid, tanh
from rnnkit.torch import Recurrent

T, N, F, H = 6, 4, 3, 5
LENGTHS = [6, 0, 4, 1]


@cell(gates="g c")
class UpdateGate(NamedTuple):
    """No state beside h, and a parameter."""

    scale: float = 1.0

    @forward("h")
    def update(self, g, c, h_prev):
        g = sigmoid(g)
        return g * h_prev + (1 - g) * tanh(self.scale * c)


@cell(gates=["i", "f", "g", Gate("a", multiplies="c_prev")], states="c")
class SeesItsState(NamedTuple):
    """One state, which R multiplies."""

    @forward("c h")
    def step(self, i, f, g, a, c_prev):
        c = sigmoid(f) * c_prev + sigmoid(i) * tanh(g)
        return c, sigmoid(a) * tanh(c)


def of_update_gate(own, product, w, states):
    (h,) = states
    g, c = product(h).chunk(2, -1)
    g = torch.sigmoid(g)
    return [g * h + (1 - g) * torch.tanh(own.scale * c)]


def of_sees_its_state(own, product, w, states):
    h, c = states
    (i, f, g, _), (_, _, _, a) = product(h).chunk(4, -1), product(c).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(a) * torch.tanh(c), c]


def of_slstm(own, product, w, states):
    h, c, n, m = states
    z, i, f, o = product(h).chunk(4, -1)
    f = (-softplus(-f) if own.sigmoid_forget else f) + m
    larger = torch.where((i > f) | (n == 0), i, f)
    i, f = torch.exp(i - larger), torch.exp((f - larger).clamp(max=0))
    c, n = f * c + i * torch.tanh(z), f * n + i
    return [torch.sigmoid(o) * c / n, c, n, larger]


def of_indrnn(own, product, w, states):
    return [torch.tanh(product(None) + w("u") * states[0])]


def of_mingru(own, product, w, states):
    z, n = product(None).chunk(2, -1)
    z = torch.sigmoid(z)
    return [(1 - z) * states[0] + z * n]


CELLS = {
    "no state": (UpdateGate(scale=0.5), of_update_gate), "R of a state": (SeesItsState(), of_sees_its_state),
    "three states": (SLSTM(sigmoid_forget=True), of_slstm), "vectors": (IndRNN(Tanh()), of_indrnn),
    "no R": (MinGRU(), of_mingru),
}  # fmt: skip
# Each cell is kernels of its own.
NAMES = [one if one in ("no state", "three states") else nightly(one) for one in CELLS]
OPTIONS = [
    {}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True},
    {"num_layers": 2, "bias": False}, {"bidirectional": True, "batch_first": True},
]  # fmt: skip


def module(kind="no state", **options):
    torch.manual_seed(0)
    return Recurrent(CELLS[kind][0], F, H, **{"dtype": torch.float64} | options)


def tuple_of(states):
    return states if isinstance(states, tuple) else (states,)


def inputs(own, batch=(N,), steps=T):
    """x, and initial states as the module takes them; all with a gradient."""
    torch.manual_seed(1)
    shape = (*batch, steps, F) if own.batch_first and batch else (steps, *batch, F)
    dtype, rows = own.weight_ih_l0.dtype, own.num_layers * (1 + own.bidirectional)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    count = len(own._rnnkit_states)
    states = [torch.rand(rows, *batch, H, dtype=dtype) + 0.5 * (index == 2) for index in range(count)]
    states = tuple(one.requires_grad_() for one in states)
    return x, states if count > 1 else states[0]


def by_steps(own, equations, x, hx, lengths):
    """The same network as a loop in PyTorch, each sequence alone: y (T, N, D*H) and the final states."""
    x = x.transpose(0, 1) if own.batch_first else x
    outputs, finals = [], []
    for n, length in enumerate(lengths):
        below, last = x[:length, n], []
        for layer in range(own.num_layers):
            ways = []
            for way in range(1 + own.bidirectional):
                suffix = f"_l{layer}" + "_reverse" * way
                w = lambda name, suffix=suffix: getattr(own, name + suffix)  # noqa: E731
                states = [one[len(last), n] for one in tuple_of(hx)]
                found = []
                for one in reversed(below) if way else below:

                    def product(source, one=one, w=w):
                        total = w("weight_ih") @ one
                        total = total if source is None else total + w("weight_hh") @ source
                        names = ("bias_ih", "bias_hh")[: 1 + (source is not None)] if own.bias else ()
                        return total + sum(w(name) for name in names)

                    states = equations(own.cell, product, w, states)
                    found.append(states[0])
                ways.append(torch.stack(found[::-1] if way else found) if found else below.new_empty(0, H))
                last.append(states)
            below = torch.cat(ways, -1)
        outputs.append(nn.functional.pad(below, (0, 0, 0, T - length)))
        finals.append([torch.stack(one) for one in zip(*last, strict=True)])
    y = torch.stack(outputs, 0 if own.batch_first else 1)
    return y, tuple(torch.stack(one, 1) for one in zip(*finals, strict=True))


def gradients(y, states, leaves):
    torch.manual_seed(2)
    results = y, *tuple_of(states)
    loss = sum((one * torch.randn(one.shape, dtype=one.dtype)).sum() for one in results)
    return torch.autograd.grad(loss, leaves, allow_unused=True)


def assert_close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        other = torch.zeros_like(one) if other is None else other
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
