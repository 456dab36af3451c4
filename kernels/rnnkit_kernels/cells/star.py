"""STAR: a cell for many layers, with one gate and a tanh around the sum."""

from typing import NamedTuple

from .cell import Gate, cell, forward
from .functions import fma, sigmoid, tanh


@cell(gates=[Gate("z", multiplies=None), "k"])
class STAR(NamedTuple):
    """Turkoglu et al., "Gating Revisited: Deep Multi-layer RNNs That Can Be Trained",
    arXiv 1911.11033:

        z = tanh(Wz x + bz)       k = s(Wk x + Rk h + biases)       h' = tanh((1 - k)*h + k*z)
    """

    @forward("h")
    def step(self, z, k, h_prev):
        k = sigmoid(k)
        return tanh(fma(k, tanh(z), (1 - k) * h_prev))
