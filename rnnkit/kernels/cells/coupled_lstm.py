"""The LSTM that forgets as much as it takes in."""

from typing import NamedTuple

from .activations import Activation, Sigmoid, Tanh
from .cell import cell, forward
from .functions import fma, value


@cell(gates="i g o", states="c")
class CoupledLSTM(NamedTuple):
    """Coupled input and forget gate, CIFG (Greff et al., "LSTM: A Search Space Odyssey", arXiv 1503.04069):

        i, o = s(W x + R h + bW + bR)       g = tanh(same)       c' = (1 - i)*c + i*g       h' = o*tanh(c')

    Other activations than the logistic function of the gates and tanh, of the `candidate` and of the `output`, are
    parameters. As ONNX's LSTM with input_forget=1.
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
