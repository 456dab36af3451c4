"""The LSTM cell (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000)."""

from typing import NamedTuple

import numpy as np

from .cell import cell, forward, gradient
from .functions import clip, fma, sigmoid, tanh


@cell(gates="i f g o", states="c")
class LSTM(NamedTuple):
    """If `clipped`, c is clipped to [low, high]."""

    clipped: bool
    low: np.floating
    high: np.floating

    @forward("i f g o c")
    def gates(self, i, f, g, o, c_prev):
        i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
        c = fma(f, c_prev, i * g)
        if self.clipped:
            c = clip(c, self.low, self.high)
        return i, f, g, o, c

    @gradient("di df dg dc_prev")
    def through_cell(self, i, f, g, c_prev, c, dc):
        if self.clipped:  # the clipped value lies on a bound exactly where the raw one was not strictly inside
            dc = 0 if c <= self.low or c >= self.high else dc
        return dc * g * (i * (1 - i)), dc * c_prev * (f * (1 - f)), dc * i * (1 - g * g), dc * f

    @forward("h")
    def output(self, o, c):
        return o * tanh(c)

    @gradient("do dc")
    def through_output(self, o, c, dh, dc):
        t = tanh(c)
        return dh * t * (o * (1 - o)), fma(dh * o, 1 - t * t, dc)
