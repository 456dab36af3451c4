"""LSTM and GRU with dropout and zoneout inside a step."""

from typing import NamedTuple

from .cell import Noise, cell, forward
from .declaration import Gate
from .functions import fma, sigmoid, tanh

_NOISES = [
    Noise("kept", "recurrent_dropout", per_step=True),
    Noise("stays_c", "zoneout_c", per_step=True, choice=True),
    Noise("stays_h", "zoneout_h", per_step=True, choice=True),
]


@cell(gates="i f g o", states="c", noises=_NOISES)
class RegularizedLSTM(NamedTuple):
    """doc"""

    recurrent_dropout: float = 0.0
    zoneout_c: float = 0.0
    zoneout_h: float = 0.0

    @forward("c h")
    def step(self, i, f, g, o, c_prev, h_prev, kept, stays_c, stays_h):
        c = fma(sigmoid(f), c_prev, sigmoid(i) * (tanh(g) * kept))
        c = fma(stays_c, c_prev - c, c)
        return c, fma(stays_h, h_prev - sigmoid(o) * tanh(c), sigmoid(o) * tanh(c))
