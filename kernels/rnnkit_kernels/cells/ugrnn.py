"""UGRNN: vanilla RNN with an update gate."""

from typing import NamedTuple

from .cell import cell, forward
from .functions import fma, sigmoid, tanh


@cell(gates="n g")
class UGRNN(NamedTuple):
    """Update gate RNN (Collins, Sohl-Dickstein and Sussillo, "Capacity and Trainability in Recurrent Neural Networks",
    arXiv 1611.09913):

        n = tanh(Wn x + Rn h + biases)       g = s(Wg x + Rg h + biases)       h' = g*h + (1 - g)*n
    """

    @forward("h")
    def step(self, n, g, h_prev):
        g = sigmoid(g)
        return fma(g, h_prev, (1 - g) * tanh(n))
