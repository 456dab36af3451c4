"""Multiplicative LSTM: the recurrent weights depend on x."""

from typing import NamedTuple

from .cell import Gate, cell, forward
from .functions import fma, sigmoid, tanh


@cell(gates=[Gate("p", apart="q"), *(Gate(name, multiplies="m") for name in "ifno")], states="c")
class MultiplicativeLSTM(NamedTuple):
    """Krause et al., "Multiplicative LSTM for sequence modelling", arXiv 1609.07959: m takes the place of h.

        m = (Wp x + bp)*(Rp h + bq)       i, f, o = s(W x + R m + biases)       n = tanh(W x + R m + biases)
        c' = f*c + i*n                    h' = o*tanh(c')

    The paper has no biases bp and bq: leave them at 0.
    """

    @forward("m")
    def multiply(self, p, q):
        return p * q

    @forward("c h")
    def step(self, i, f, n, o, c_prev):
        c = fma(sigmoid(f), c_prev, sigmoid(i) * tanh(n))
        return c, sigmoid(o) * tanh(c)
