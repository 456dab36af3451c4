"""AUGRU: GRU with an attentional update gate."""

from typing import NamedTuple

from .cell import Gate, cell, forward
from .functions import fma, sigmoid, tanh


@cell(gates=["r", "u", Gate("n", apart="q")], inputs="attention")
class AUGRU(NamedTuple):
    """Zhou et al., "Deep Interest Evolution Network for Click-Through Rate Prediction", arXiv 1809.03672; `attention`
    is a side input from 0 to 1, one number for each step or for each unit of a step:

        r, u = s(W x + R h + biases)       n = tanh(Wn x + bn + r*(Rn h + bq))
        h' = (1 - attention*u)*h + attention*u*n
    """

    @forward("h")
    def step(self, r, u, n, q, attention, h_prev):
        u = attention * sigmoid(u)
        return fma(u, tanh(fma(sigmoid(r), q, n)), (1 - u) * h_prev)
