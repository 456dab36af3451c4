"""Vanilla RNN cells (Elman, "Finding Structure in Time", 1990)."""

from typing import NamedTuple

from .cell import cell, forward, gradient
from .functions import tanh


@cell(gates="a")
class Tanh(NamedTuple):
    """h = tanh(a)."""

    @forward("a h")
    def output(self, a):
        h = tanh(a)
        return h, h

    @gradient("da")
    def through_output(self, a, dh):
        return dh * (1 - a * a)


@cell(gates="a", smooth=False)
class ReLU(NamedTuple):
    """h = max(a, 0); the gradient at 0 is 0."""

    @forward("a h")
    def output(self, a):
        h = 0 if a < 0 else a
        return h, h

    @gradient("da")
    def through_output(self, a, dh):
        return 0 if a <= 0 else dh
