"""MinimalRNN: the states stay in the space of the encoded inputs."""

from typing import NamedTuple

from .cell import Gate, cell, forward
from .functions import fma, sigmoid, tanh


@cell(gates=[Gate("n", multiplies=None), Gate("u", input=False), Gate("v", multiplies="z", input=False)])
class MinimalRNN(NamedTuple):
    """Chen, "MinimalRNN: Toward More Interpretable and Trainable Recurrent Neural Networks",
    arXiv 1711.06788:

        z = tanh(Wn x + bn)       u = s(Ru h + Rv z + biases)       h' = u*h + (1 - u)*z
    """

    @forward("z")
    def encode(self, n):
        return tanh(n)

    @forward("h")
    def step(self, u, v, z, h_prev):
        u = sigmoid(u + v)
        return fma(u, h_prev, (1 - u) * z)
