"""The LSTM with activations of one's choice."""

from typing import NamedTuple

from .activations import Activation, Sigmoid, Tanh
from .cell import cell, forward, gradient
from .functions import fma, slope, value


@cell(gates="i f g o", states="c")
class ActivatedLSTM(NamedTuple):
    """The LSTM with other activations, s of the gates, t of the `candidate` and u of the `output`:

        i, f, o = s(W x + R h + bW + bR)       g = t(same)       c' = f*c + i*g       h' = o*u(c')

    As ONNX's LSTM with activations.
    """

    gate: Activation = Sigmoid()
    candidate: Activation = Tanh()
    output: Activation = Tanh()

    @forward("i f g o c")
    def update(self, i, f, g, o, c_prev):
        i, f, g, o = value(self.gate, i), value(self.gate, f), value(self.candidate, g), value(self.gate, o)
        return i, f, g, o, fma(f, c_prev, i * g)

    @gradient("di df dg dc_prev")
    def through_update(self, i, f, g, c_prev, dc):
        di, df = dc * g * slope(self.gate, i), dc * c_prev * slope(self.gate, f)
        return di, df, dc * i * slope(self.candidate, g), dc * f

    @forward("h")
    def expose(self, o, c):
        return o * value(self.output, c)

    @gradient("do dc")
    def through_expose(self, o, c, dh, dc):
        t = value(self.output, c)
        return dh * t * slope(self.gate, o), fma(dh * o, slope(self.output, t), dc)
