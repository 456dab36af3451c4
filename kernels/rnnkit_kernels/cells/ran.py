"""RAN: LSTM whose candidate is linear in x and does not depend on h."""

from typing import NamedTuple

from .activations import Activation, Tanh
from .cell import Gate, cell, forward
from .functions import fma, sigmoid, value


@cell(gates=[Gate("n", multiplies=None), "i", "f"], states="c")
class RAN(NamedTuple):
    """Lee, Levy and Zettlemoyer, "Recurrent Additive Networks", arXiv 1705.07393:

        n = Wn x + bn       i, f = s(W x + R h + biases)       c' = i*n + f*c       h' = tanh(c')

    The paper has no bias bn: leave it at 0. Its other output, h' = c', is `RAN(Affine())`.
    """

    output: Activation = Tanh()

    @forward("c h")
    def step(self, n, i, f, c_prev):
        c = fma(sigmoid(i), n, sigmoid(f) * c_prev)
        return c, value(self.output, c)
