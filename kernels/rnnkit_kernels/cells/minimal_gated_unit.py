"""Minimal gated unit: GRU with a single gate."""

from typing import NamedTuple

from .cell import Gate, cell, forward
from .functions import fma, sigmoid, tanh


@cell(gates=[Gate("f"), Gate("n", multiplies="forgotten")])
class MinimalGatedUnit(NamedTuple):
    """Zhou et al., "Minimal Gated Unit for Recurrent Neural Networks",
    arXiv 1603.09420:

        f = s(Wf x + Rf h + biases)       n = tanh(Wn x + Rn (f*h) + biases)       h' = (1 - f)*h + f*n
    """

    @forward("f forgotten")
    def gate(self, f, h_prev):
        f = sigmoid(f)
        return f, f * h_prev

    @forward("n h")
    def output(self, f, n, h_prev):
        n = tanh(n)
        return n, fma(f, n, (1 - f) * h_prev)
