"""IndRNN: each unit of a layer has one recurrent weight, for its own h."""

from typing import NamedTuple

from .activations import Activation, Relu
from .cell import Gate, Vector, cell, forward
from .functions import fma, value


@cell(gates=[Gate("a", multiplies=None)], vectors=[Vector("u", 0, 1)], smooth=False)
class IndRNN(NamedTuple):
    """Li et al., "Independently Recurrent Neural Network (IndRNN)", arXiv 1803.04831: a vector in place of R.

        h' = relu(W x + u*h + bW)

    u is initialised in [0, 1], as in the paper for ReLU. For T steps the paper also clips ``|u|`` to gamma**(1/T) in
    training, for example with gamma = 2: clip the views of u yourself. The activation is a parameter.
    """

    activation: Activation = Relu()

    @forward("a h")
    def output(self, a, u, h_prev):
        h = value(self.activation, fma(u, h_prev, a))
        return h, h
