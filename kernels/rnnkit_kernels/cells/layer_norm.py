"""LSTM and GRU with layer normalization."""

import math
from typing import NamedTuple

from .cell import Gate, Vector, cell, forward
from .functions import fma, mean, sigmoid, tanh
from .regularized import DROPOUT, ZONEOUT, ZONEOUT_C, zoned


def _gains(names):
    return [Vector(name, 1, 1) for name in names.split()]


def _shifts(names):
    return [Vector(name, 0, 0) for name in names.split()]


def over_deviation(variance, eps):
    """Return 1 / the standard deviation."""
    return 1 / math.sqrt(variance + eps)


def normalised(x, eps):
    """Normalise x over the units: subtract the mean, divide by the standard deviation."""
    x = x - mean(x)
    return x * over_deviation(mean(x * x), eps)


def two_normalised(x, y, eps):
    """Normalise jointly over the units of two gates."""
    m = mean(0.5 * (x + y))
    x, y = x - m, y - m
    scale = over_deviation(mean(0.5 * (x * x + y * y)), eps)
    return x * scale, y * scale


def four_normalised(i, f, g, o, eps):
    """Normalise jointly over the units of four gates."""
    m = mean(0.25 * (i + f + g + o))
    i, f, g, o = i - m, f - m, g - m, o - m
    scale = over_deviation(mean(0.25 * (i * i + f * f + g * g + o * o)), eps)
    return i * scale, f * scale, g * scale, o * scale


_OF_LSTM = _gains("wi wf wg wo ri rf rg ro gain_c") + _shifts("bi bf bg bo shift_c")
_OF_GRU = _gains("wr wz wn rr rz rn") + _shifts("br bz bn bq")


@cell(
    gates=[Gate(name, apart=f"q{name}") for name in "ifgo"], states="c", vectors=_OF_LSTM,
    noises=[DROPOUT, ZONEOUT, ZONEOUT_C],
)  # fmt: skip
class LayerNormLSTM(NamedTuple):
    """Ba, Kiros and Hinton, "Layer Normalization", arXiv 1607.06450. LN(a) is (a - mean)/sqrt(variance + eps), over the
    units of all gates together, and of c:

        i, f, g, o = w*LN(W x) + r*LN(R h) + b          gains w and r and shift b of each gate and unit
        c' = s(f)*c + s(i)*tanh(g)                      h' = s(o)*tanh(gain_c*LN(c') + shift_c)

    The next step reads c', not LN(c'). The biases of W and R are inside the norms; the paper has none: use `bias=False`
    for its cell. Gains are initialised to 1, shifts to 0. `recurrent_dropout`, `zoneout` and `zoneout_c` are those of
    `RegularizedLSTM`.
    """

    eps: float = 1e-5
    recurrent_dropout: float = 0.0
    zoneout: float = 0.0
    zoneout_c: float = 0.0

    @forward("c h")
    def step(
        self, i, f, g, o, qi, qf, qg, qo, c_prev, h_prev, wi, wf, wg, wo, ri, rf, rg, ro, bi, bf, bg, bo, gain_c,
        shift_c, keep, hold, hold_c,
    ):  # fmt: skip
        i, f, g, o = four_normalised(i, f, g, o, self.eps)
        qi, qf, qg, qo = four_normalised(qi, qf, qg, qo, self.eps)
        i, f = fma(ri, qi, fma(wi, i, bi)), fma(rf, qf, fma(wf, f, bf))
        g, o = fma(rg, qg, fma(wg, g, bg)), fma(ro, qo, fma(wo, o, bo))
        c = zoned(hold_c, c_prev, fma(sigmoid(f), c_prev, sigmoid(i) * (keep * tanh(g))))
        return c, zoned(hold, h_prev, sigmoid(o) * tanh(fma(gain_c, normalised(c, self.eps), shift_c)))


@cell(gates=[Gate(name, apart=f"q{name}") for name in "rzn"], vectors=_OF_GRU, noises=[DROPOUT, ZONEOUT])
class LayerNormGRU(NamedTuple):
    """Ba, Kiros and Hinton, "Layer Normalization", arXiv 1607.06450. LN is that of `LayerNormLSTM`, over the units of r
    and z together, and of n:

        r, z = s(w*LN(W x) + r*LN(R h) + b)             gains w and r and shift b of each gate and unit
        n = tanh(wn*LN(Wn x) + bn + r*(rn*LN(Rn h) + bq))
        h' = z*h + (1 - z)*n

    The biases of W and R are inside the norms; the paper has none: use `bias=False` for its cell. Gains are initialised
    to 1, shifts to 0. `recurrent_dropout` and `zoneout` are those of `RegularizedGRU`.
    """

    eps: float = 1e-5
    recurrent_dropout: float = 0.0
    zoneout: float = 0.0

    @forward("h")
    def step(self, r, z, n, qr, qz, qn, h_prev, wr, wz, wn, rr, rz, rn, br, bz, bn, bq, keep, hold):
        r, z = two_normalised(r, z, self.eps)
        qr, qz = two_normalised(qr, qz, self.eps)
        n, qn = normalised(n, self.eps), normalised(qn, self.eps)
        r, z = sigmoid(fma(rr, qr, fma(wr, r, br))), sigmoid(fma(rz, qz, fma(wz, z, bz)))
        n = keep * tanh(fma(r, fma(rn, qn, bq), fma(wn, n, bn)))
        return zoned(hold, h_prev, fma(z, h_prev, (1 - z) * n))
