"""The LSTM with activations of one's choice."""

from typing import NamedTuple

from .activations import Activation, Sigmoid, Tanh
from .cell import cell, forward
from .functions import fma, value


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

    @forward("h")
    def expose(self, o, c):
        return o * value(self.output, c)
