"""FastGRNN: the gate and the candidate share W and R."""

from typing import NamedTuple

from .cell import cell, forward
from .declaration import Scalar
from .functions import fma, sigmoid, tanh


@cell(gates="a", vectors="shift", scalars=[Scalar("zeta", 1, 1), Scalar("nu", -4, -4)])
class FastGRNN(NamedTuple):
    """Kusupati et al., "FastGRNN: A Fast, Accurate, Stable and Tiny Kilobyte Sized Gated Recurrent Neural Network",
    arXiv 1901.02358:

        a = W x + R h + biases       z = s(a)       n = tanh(a + shift)       h' = (s(zeta)*(1 - z) + s(nu))*n + z*h

    z uses the biases, n the biases plus `shift`. zeta and nu are scalars, initialised to 1 and -4 as in the authors'
    code.
    """

    @forward("h")
    def step(self, a, shift, zeta, nu, h_prev):
        z = sigmoid(a)
        return fma(fma(sigmoid(zeta), 1 - z, sigmoid(nu)), tanh(a + shift), z * h_prev)
