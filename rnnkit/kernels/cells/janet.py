"""The LSTM with the forget gate alone."""

from typing import NamedTuple

from .cell import cell, forward
from .functions import fma, sigmoid, tanh


@cell(gates="f n")
class JANET(NamedTuple):
    """Van der Westhuizen and Lasenby, "The unreasonable effectiveness of the forget gate", arXiv 1804.04849; with
    a_f, a_n = W x + R h + biases of the gate:

        f = s(a_f)       n = tanh(a_n)       h' = f*h + (1 - s(a_f - beta))*n

    The cell state is h. With beta above 0 more is taken in than is forgotten. torchrecurrent learns beta.
    """

    beta: float = 1.0

    @forward("h")
    def step(self, f, n, h_prev):
        return fma(sigmoid(f), h_prev, (1 - sigmoid(f - self.beta)) * tanh(n))
