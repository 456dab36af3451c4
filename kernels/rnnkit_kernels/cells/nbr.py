"""nBRC: units may have two stable states."""

from typing import NamedTuple

from .cell import Gate, cell, forward
from .functions import fma, sigmoid, tanh


@cell(gates=["a", "c", Gate("n", multiplies=None)])
class NBR(NamedTuple):
    """The neuromodulated bistable recurrent cell, nBRC (Vecoven, Ernst and Drion, "A bio-inspired bistable recurrent
    cell allows for long-lasting memory", arXiv 2006.05252):

        a = 1 + tanh(Wa x + Ra h + biases)       c = s(Wc x + Rc h + biases)
        h' = c*h + (1 - c)*tanh(Wn x + bn + a*h)

    If a is above 1, a unit is bistable: it keeps one of two values. If a is below 1, it forgets.
    """

    @forward("h")
    def step(self, a, c, n, h_prev):
        a, c = 1 + tanh(a), sigmoid(c)
        return fma(c, h_prev, (1 - c) * tanh(fma(a, h_prev, n)))
