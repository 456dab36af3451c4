"""The gated unit with a single gate."""

from typing import NamedTuple

from .cell import Gate, cell, forward, gradient
from .functions import fma, sigmoid, tanh


@cell(gates=[Gate("f"), Gate("n", multiplies="forgotten")])
class MinimalGatedUnit(NamedTuple):
    """Zhou et al., "Minimal Gated Unit for Recurrent Neural Networks", arXiv 1603.09420:

        f = s(Wf x + Rf h + biases)       n = tanh(Wn x + Rn (f*h) + biases)       h' = (1 - f)*h + f*n
    """

    @forward("f forgotten")
    def gate(self, f, h_prev):
        f = sigmoid(f)
        return f, f * h_prev

    @gradient("df dh_prev")
    def through_gate(self, f, h_prev, df, dforgotten, dh_prev):
        return fma(dforgotten, h_prev, df) * (f * (1 - f)), fma(dforgotten, f, dh_prev)

    @forward("n h")
    def output(self, f, n, h_prev):
        n = tanh(n)
        return n, fma(f, n, (1 - f) * h_prev)

    @gradient("df dn dh_prev")
    def through_output(self, f, n, h_prev, dh):
        return dh * (n - h_prev), dh * f * (1 - n * n), dh * (1 - f)
