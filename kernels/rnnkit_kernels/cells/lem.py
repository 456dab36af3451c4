"""LEM: two states, each with a learned time step."""

from typing import NamedTuple

from .cell import Gate, cell, forward
from .functions import fma, sigmoid, tanh


@cell(gates=["ty", "tz", "n", Gate("y", multiplies="z")], states="z")
class LEM(NamedTuple):
    """Rusch et al., "Long Expressive Memory for Sequence Modeling", arXiv 2110.04744:

        ty, tz = dt*s(W x + R h + biases)       z' = (1 - tz)*z + tz*tanh(Wn x + Rn h + biases)
        h' = (1 - ty)*h + ty*tanh(Wy x + Ry z' + biases)

    torchrecurrent multiplies Ry by the previous z instead of z'.
    """

    dt: float = 1.0

    @forward("z")
    def remember(self, tz, n, z_prev):
        tz = self.dt * sigmoid(tz)
        return fma(tz, tanh(n), (1 - tz) * z_prev)

    @forward("h")
    def expose(self, ty, y, h_prev):
        ty = self.dt * sigmoid(ty)
        return fma(ty, tanh(y), (1 - ty) * h_prev)
