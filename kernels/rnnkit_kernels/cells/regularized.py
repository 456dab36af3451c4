"""LSTM and GRU with recurrent dropout and zoneout, drawn at every step."""

from typing import NamedTuple

from .cell import Gate, Noise, cell, forward
from .functions import fma, sigmoid, tanh

DROPOUT = Noise("keep", "recurrent_dropout", per_step=True)
ZONEOUT = Noise("hold", "zoneout", per_step=True, choice=True)
ZONEOUT_C = Noise("hold_c", "zoneout_c", per_step=True, choice=True)


def zoned(hold, before, now):
    """Return `before` if hold is 1, `now` if it is 0; in inference, with hold the rate, their weighted mean."""
    return fma(hold, before - now, now)


@cell(gates="i f g o", states="c", noises=[DROPOUT, ZONEOUT, ZONEOUT_C])
class RegularizedLSTM(NamedTuple):
    """Semeniuta et al., "Recurrent Dropout without Memory Loss", arXiv 1603.05118, and Krueger et al., "Zoneout:
    Regularizing RNNs by Randomly Preserving Hidden Activations", arXiv 1606.01305; a_i ... are the pre-activations,
    W x + R h + biases, and random numbers are drawn for each unit and step:

        c~ = s(a_f)*c + s(a_i)*(k*tanh(a_g))        c' = c with probability `zoneout_c`, else c~
        h~ = s(a_o)*tanh(c')                        h' = h with probability `zoneout`, else h~

    k is 0 with probability `recurrent_dropout`, else 1/(1 - recurrent_dropout). In inference k = 1, and c' and h' are
    the expectations: h' = zoneout*h + (1 - zoneout)*h~, c' likewise. All probabilities are in 0..1.
    """

    recurrent_dropout: float = 0.0
    zoneout: float = 0.0
    zoneout_c: float = 0.0

    @forward("c h")
    def step(self, i, f, g, o, c_prev, h_prev, keep, hold, hold_c):
        c = zoned(hold_c, c_prev, fma(sigmoid(f), c_prev, sigmoid(i) * (keep * tanh(g))))
        return c, zoned(hold, h_prev, sigmoid(o) * tanh(c))


@cell(gates=[Gate("r"), Gate("z"), Gate("n", apart="q")], noises=[DROPOUT, ZONEOUT])
class RegularizedGRU(NamedTuple):
    """Semeniuta et al., "Recurrent Dropout without Memory Loss", arXiv 1603.05118, and Krueger et al., "Zoneout", arXiv
    1606.01305, with the reset after the product; a_r and a_z are the pre-activations, W x + R h + biases. Random
    numbers and k are those of `RegularizedLSTM`:

        n = tanh(Wn x + bWn + s(a_r)*(Rn h + bRn))      h~ = s(a_z)*h + (1 - s(a_z))*(k*n)
        h' = h with probability `zoneout`, else h~
    """

    recurrent_dropout: float = 0.0
    zoneout: float = 0.0

    @forward("h")
    def step(self, r, z, n, q, h_prev, keep, hold):
        z, n = sigmoid(z), keep * tanh(fma(sigmoid(r), q, n))
        return zoned(hold, h_prev, fma(z, h_prev, (1 - z) * n))
