"""LSTM with coupled input and forget gates (CIFG)."""

from typing import NamedTuple

from .activations import Activation, Sigmoid, Tanh
from .cell import cell, forward
from .functions import fma, value


@cell(gates="i g o", states="c")
class CoupledLSTM(NamedTuple):
    """LSTM with coupled input and forget gates, CIFG (Greff et al., "LSTM: A Search Space Odyssey", arXiv 1503.04069):

        i, o = s(W x + R h + bW + bR)       g = tanh(W x + R h + bW + bR)
        c' = (1 - i)*c + i*g                h' = o*tanh(c')

    The activations are parameters: s of the gates (`gate`), tanh of the `candidate` and of the `output`. Same as ONNX's
    LSTM with input_forget=1.
    """

    gate: Activation = Sigmoid()
    candidate: Activation = Tanh()
    output: Activation = Tanh()

    @forward("i g o c")
    def update(self, i, g, o, c_prev):
        i, g, o = value(self.gate, i), value(self.candidate, g), value(self.gate, o)
        return i, g, o, fma(1 - i, c_prev, i * g)

    @forward("h")
    def expose(self, o, c):
        return o * value(self.output, c)
