"""Modules of cells that differ in what PyTorch sees of them, and what they take."""

from typing import NamedTuple

import torch
from combinations import nightly

from rnnkit.cells import SLSTM, Gate, IndRNN, MinGRU, Tanh, cell, forward, sigmoid, tanh
from rnnkit.torch import Recurrent

T, N, F, H = 6, 4, 3, 5


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


CELLS = {  # and whether it runs by default: each is kernels of its own
    "no state": (UpdateGate(scale=0.5), True), "R of a state": (SeesItsState(), False),
    "three states": (SLSTM(sigmoid_forget=True), True), "vectors": (IndRNN(Tanh()), False), "no R": (MinGRU(), False),
}  # fmt: skip
NAMES = [name if by_default else nightly(name) for name, (_, by_default) in CELLS.items()]


def module(kind="no state", **options):
    torch.manual_seed(0)
    return Recurrent(CELLS[kind][0], F, H, **{"dtype": torch.float64} | options)


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
