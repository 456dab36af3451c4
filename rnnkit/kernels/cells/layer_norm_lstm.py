"""The LSTM with layer normalisation."""

import math
from typing import NamedTuple

from .cell import Gate, Vector, cell, forward
from .functions import fma, mean, sigmoid, tanh

_GAINS = [Vector(name, 1, 1) for name in "xi xf xg xo ri rf rg ro gc".split()]
_SHIFTS = [Vector(name, 0, 0) for name in "bi bf bg bo bc".split()]


def over(deviation, eps):
    """1 / the standard deviation of what has this mean square."""
    return 1 / math.sqrt(deviation + eps)


def of_gates(i, f, g, o, eps):
    """The numbers of four gates, normalised over the units of all four."""
    m = mean(0.25 * (i + f + g + o))
    i, f, g, o = i - m, f - m, g - m, o - m
    by = over(mean(0.25 * (i * i + f * f + g * g + o * o)), eps)
    return i * by, f * by, g * by, o * by


@cell(gates=[Gate(name, apart=f"q{name}") for name in "ifgo"], states="c", vectors=_GAINS + _SHIFTS)
class LayerNormLSTM(NamedTuple):
    """doc"""

    eps: float = 1e-5

    @forward("c h")
    def step(self, i, f, g, o, qi, qf, qg, qo, c_prev, xi, xf, xg, xo, ri, rf, rg, ro, bi, bf, bg, bo, gc, bc):
        i, f, g, o = of_gates(i, f, g, o, self.eps)
        qi, qf, qg, qo = of_gates(qi, qf, qg, qo, self.eps)
        i, f = fma(ri, qi, fma(xi, i, bi)), fma(rf, qf, fma(xf, f, bf))
        g, o = fma(rg, qg, fma(xg, g, bg)), fma(ro, qo, fma(xo, o, bo))
        c = fma(sigmoid(f), c_prev, sigmoid(i) * tanh(g))
        d = c - mean(c)
        return c, sigmoid(o) * tanh(fma(gc, d * over(mean(d * d), self.eps), bc))
