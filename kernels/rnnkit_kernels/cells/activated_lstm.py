"""LSTM with configurable activations."""

from typing import NamedTuple

from .activations import Activation, Sigmoid, Tanh
from .cell import cell, forward
from .functions import fma, value


@cell(gates="i f g o", states="c")
class ActivatedLSTM(NamedTuple):
    """LSTM with a choice of activations: s for the gates (`gate`), t for the `candidate` and u for the `output`:

        i, f, o = s(W x + R h + bW + bR)       g = t(W x + R h + bW + bR)
        c' = f*c + i*g                         h' = o*u(c')

    Same as ONNX's LSTM with activations.
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
