"""Strongly typed cells: no product with h at all.

Two of them see the input of the step before instead."""

from typing import NamedTuple

import numpy as np

from rnnkit.cells import Gate, cell, fma, forward, sigmoid, tanh


def beside_the_one_before(x):
    """The input (T, N, I) beside that of the step before: (T, N, 2*I).

    Before the first step it is 0.
    """
    before = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    return np.concatenate([x, before], axis=2)


@cell(gates=[Gate("z", multiplies=None), Gate("f", multiplies=None)])
class TRNN(NamedTuple):
    """The vanilla cell, strongly typed: a gate that sees x alone.

    Balduzzi and Ghifary, "Strongly-Typed Recurrent Neural Networks", arXiv
    1602.02218:

        z = Wz x + bz       f = s(Wf x + bf)       h' = f*h + (1 - f)*z

    The paper has no bias bz: leave it at 0.
    """

    @forward("h")
    def step(self, z, f, h_prev):
        f = sigmoid(f)
        return fma(f, h_prev, (1 - f) * z)


@cell(gates=[Gate(name, multiplies=None) for name in "zfo"])
class TGRU(NamedTuple):
    """The GRU, strongly typed: it sees x and the x before.

    Balduzzi and Ghifary, "Strongly-Typed Recurrent Neural Networks", arXiv
    1602.02218; W has 2*I columns, for x and for the x before
    (`beside_the_one_before`):

        z = W x + V x_before + b
        f = s(same)
        o = tanh(same)
        h' = f*h + z*o
    """

    @forward("h")
    def step(self, z, f, o, h_prev):
        return fma(sigmoid(f), h_prev, z * tanh(o))


@cell(gates=[Gate(name, multiplies=None) for name in "zfo"], states="c")
class TLSTM(NamedTuple):
    """The LSTM, strongly typed: it sees x and the x before.

    Balduzzi and Ghifary, "Strongly-Typed Recurrent Neural Networks", arXiv
    1602.02218; W has 2*I columns, for x and for the x before
    (`beside_the_one_before`):

        z = W x + V x_before + b
        f = s(same)
        o = tanh(same)
        c' = f*c + (1 - f)*z
        h' = c'*o
    """

    @forward("c h")
    def step(self, z, f, o, c_prev):
        f = sigmoid(f)
        c = fma(f, c_prev, (1 - f) * z)
        return c, c * tanh(o)
