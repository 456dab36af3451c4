"""LSTM and GRU with variational recurrent dropout: one mask for all steps of a sequence."""

from typing import NamedTuple

from .cell import Gate, Noise, cell, forward
from .functions import fma, sigmoid, tanh

_DROPOUT = [Noise("keep", "recurrent_dropout")]


@cell(gates=[Gate(name, multiplies="masked") for name in "ifgo"], states="c", noises=_DROPOUT)
class VariationalLSTM(NamedTuple):
    """Gal and Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent Neural Networks", arXiv
    1512.05287: R multiplies k*h. The mask k is drawn once for a sequence and used in all its steps and for all gates.

        i, f, o = s(W x + R (k*h) + biases)     g = tanh(W x + R (k*h) + biases)
        c' = f*c + i*g                          h' = o*tanh(c')

    For each unit, k is 0 with probability `recurrent_dropout` (from 0 to 1), else 1/(1 - recurrent_dropout). In
    inference k = 1. The paper's mask on a layer's input corresponds to `dropout`, which is drawn at each step.
    """

    recurrent_dropout: float = 0.0

    @forward("masked")
    def mask(self, h_prev, keep):
        return keep * h_prev

    @forward("c h")
    def step(self, i, f, g, o, c_prev):
        c = fma(sigmoid(f), c_prev, sigmoid(i) * tanh(g))
        return c, sigmoid(o) * tanh(c)


@cell(gates=[Gate("r", "masked"), Gate("z", "masked"), Gate("n", "masked", apart="q")], noises=_DROPOUT)
class VariationalGRU(NamedTuple):
    """Gal and Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent Neural Networks", arXiv
    1512.05287, as in `VariationalLSTM`, with the reset after the product:

        r, z = s(W x + R (k*h) + biases)        n = tanh(Wn x + bWn + r*(Rn (k*h) + bRn))
        h' = z*h + (1 - z)*n
    """

    recurrent_dropout: float = 0.0

    mask = VariationalLSTM.mask

    @forward("h")
    def step(self, r, z, n, q, h_prev):
        z = sigmoid(z)
        return fma(z, h_prev, (1 - z) * tanh(fma(sigmoid(r), q, n)))
