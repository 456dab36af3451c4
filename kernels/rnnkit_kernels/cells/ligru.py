"""Li-GRU: GRU without a reset gate, with ReLU."""

from typing import NamedTuple

from .activations import Activation, Relu
from .cell import cell, forward
from .functions import fma, sigmoid, value


@cell(gates="z n", smooth=False)
class LiGRU(NamedTuple):
    """Ravanelli et al., "Light Gated Recurrent Units for Speech Recognition", arXiv 1803.10225:

        z = s(Wz x + Rz h + biases)       n = relu(Wn x + Rn h + biases)       h' = z*h + (1 - z)*n

    The paper also applies batch normalisation to W x, which is not part of this cell. Without it, ReLU may grow without
    bound. The activation of the candidate is a parameter.
    """

    candidate: Activation = Relu()

    @forward("h")
    def step(self, z, n, h_prev):
        z = sigmoid(z)
        return fma(z, h_prev, (1 - z) * value(self.candidate, n))
