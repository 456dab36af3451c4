"""The GRU without anything of h in its gates."""

from typing import NamedTuple

from .cell import Gate, cell, forward
from .functions import fma, sigmoid


@cell(gates=[Gate("z", multiplies=None), Gate("n", multiplies=None)])
class MinGRU(NamedTuple):
    """Feng et al., "Were RNNs All We Needed?", arXiv 2410.01201, section 3.1: no product with R, no reset gate and no
    tanh, that is, the form of the paper's equations and not the one in log space of its appendix B:

        z = s(Wz x + bz)       n = Wn x + bn       h' = (1 - z)*h + z*n
    """

    @forward("z h")
    def output(self, z, n, h_prev):
        z = sigmoid(z)
        return z, fma(z, n, (1 - z) * h_prev)
