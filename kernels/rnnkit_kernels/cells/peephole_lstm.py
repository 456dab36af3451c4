"""Peephole LSTM: the gates read the cell state."""

from typing import NamedTuple

from .activations import Activation, Sigmoid, Tanh
from .cell import cell, forward
from .functions import fma, value


@cell(gates="i f g o", states="c", vectors="peephole_i peephole_f peephole_o")
class PeepholeLSTM(NamedTuple):
    """Gers and Schmidhuber, "Recurrent Nets that Time and Count", 2000; a_i ... are the pre-activations,
    W x + R h + biases:

        i = s(a_i + peephole_i*c)       f = s(a_f + peephole_f*c)       g = tanh(a_g)       c' = f*c + i*g
        o = s(a_o + peephole_o*c')      h' = o*tanh(c')

    The activations are parameters: s of the gates (`gate`), tanh of the `candidate` and of the `output`. Same as ONNX's
    LSTM with P, whose order is i o f.
    """

    gate: Activation = Sigmoid()
    candidate: Activation = Tanh()
    output: Activation = Tanh()

    @forward("i f g c")
    def update(self, i, f, g, c_prev, peephole_i, peephole_f):
        i = value(self.gate, fma(peephole_i, c_prev, i))
        f = value(self.gate, fma(peephole_f, c_prev, f))
        g = value(self.candidate, g)
        return i, f, g, fma(f, c_prev, i * g)

    @forward("o h")
    def expose(self, o, c, peephole_o):
        o = value(self.gate, fma(peephole_o, c, o))
        return o, o * value(self.output, c)
