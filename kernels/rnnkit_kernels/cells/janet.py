"""JANET: LSTM with only a forget gate."""

from typing import NamedTuple

from .cell import cell, forward
from .functions import fma, sigmoid, tanh


@cell(gates="f n")
class JANET(NamedTuple):
    """Van der Westhuizen and Lasenby, "The unreasonable effectiveness of the forget gate", arXiv 1804.04849; a_f and
    a_n are the pre-activations, W x + R h + biases:

        f = s(a_f)       n = tanh(a_n)       h' = f*h + (1 - s(a_f - beta))*n

    The cell state is h. A beta above 0 increases the input relative to forgetting. torchrecurrent learns beta.
    """

    beta: float = 1.0

    @forward("h")
    def step(self, f, n, h_prev):
        return fma(sigmoid(f), h_prev, (1 - sigmoid(f - self.beta)) * tanh(n))
