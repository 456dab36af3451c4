"""The vanilla cell whose units see of each other nothing within a layer."""

from typing import NamedTuple

from .activations import Activation, Relu
from .cell import Gate, Vector, cell, forward
from .functions import fma, value


@cell(gates=[Gate("a", multiplies=None)], vectors=[Vector("u", 0, 1)], smooth=False)
class IndRNN(NamedTuple):
    """Li et al., "Independently Recurrent Neural Network (IndRNN)", arXiv 1803.04831: a vector in place of R.

        h' = relu(W x + u*h + bW)

    u is drawn from [0, 1], as the paper has it for ReLU. For T steps it keeps ``|u|`` below gamma**(1/T), gamma = 2 say, in
    all of training: clip the views of u yourself. Another activation is a parameter.
    """

    activation: Activation = Relu()

    @forward("a h")
    def output(self, a, u, h_prev):
        h = value(self.activation, fma(u, h_prev, a))
        return h, h
