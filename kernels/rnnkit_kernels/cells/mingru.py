"""minGRU: gates depend on x only."""

from typing import NamedTuple

from .cell import Gate, cell, forward
from .functions import fma, sigmoid


@cell(gates=[Gate("z", multiplies=None), Gate("n", multiplies=None)])
class MinGRU(NamedTuple):
    """Feng et al., "Were RNNs All We Needed?", arXiv 2410.01201, section 3.1: no product with R, no reset gate and no
    tanh. These are the equations of the main text, not the log-space form of appendix B:

        z = s(Wz x + bz)       n = Wn x + bn       h' = (1 - z)*h + z*n
    """

    @forward("z h")
    def output(self, z, n, h_prev):
        z = sigmoid(z)
        return z, fma(z, n, (1 - z) * h_prev)
