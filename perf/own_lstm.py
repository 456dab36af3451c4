"""An LSTM as a user writes it from its equations, to time against the built-in one."""

from typing import NamedTuple

from rnnkit.cells import cell, fma, forward, gradient, sigmoid, tanh


@cell(gates="i f g o", states="c")
class OwnLSTM(NamedTuple):
    """c' = f*c + i*g, h' = o*tanh(c')."""

    @forward("i f g o c")
    def gates(self, i, f, g, o, c_prev):
        i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
        return i, f, g, o, fma(f, c_prev, i * g)

    @gradient("di df dg dc_prev")
    def through_cell(self, i, f, g, c_prev, dc):
        return dc * g * (i * (1 - i)), dc * c_prev * (f * (1 - f)), dc * i * (1 - g * g), dc * f

    @forward("h")
    def output(self, o, c):
        return o * tanh(c)

    @gradient("do dc")
    def through_output(self, o, c, dh, dc):
        t = tanh(c)
        return dh * t * (o * (1 - o)), fma(dh * o, 1 - t * t, dc)
