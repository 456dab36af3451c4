"""Cells as a user writes them, in a file of his own, each with what the protocol has and no mode asks for."""

from typing import NamedTuple

from perf.own_lstm import OwnLSTM as OwnLSTM
from rnnkit.cells import Gate, Vector, cell, exp, fma, forward, gradient, sigmoid, tanh

SLOPE = 0.125  # a number of the module is one of the equations


def leaky(x):
    """A function of the user's own."""
    return x if x > 0 else SLOPE * x


@cell(gates="i f g o", states="c", vectors="peephole_i peephole_f peephole_o")
class Peephole(NamedTuple):
    """An LSTM whose gates see its cell (Gers and Schmidhuber 2000): vectors."""

    @forward("i f g c")
    def gates(self, i, f, g, c_prev, peephole_i, peephole_f):
        i, f, g = sigmoid(fma(peephole_i, c_prev, i)), sigmoid(fma(peephole_f, c_prev, f)), tanh(g)
        return i, f, g, fma(f, c_prev, i * g)

    @gradient("di df dg dc_prev dpeephole_i dpeephole_f")
    def through_cell(self, i, f, g, c_prev, peephole_i, peephole_f, dc):
        di, df = dc * g * (i * (1 - i)), dc * c_prev * (f * (1 - f))
        dc_prev = fma(dc, f, fma(di, peephole_i, df * peephole_f))
        return di, df, dc * i * (1 - g * g), dc_prev, di * c_prev, df * c_prev

    @forward("o h")
    def output(self, o, c, peephole_o):
        o = sigmoid(fma(peephole_o, c, o))
        return o, o * tanh(c)

    @gradient("do dc dpeephole_o")
    def through_output(self, o, c, peephole_o, dh, dc):
        t = tanh(c)
        do = dh * t * (o * (1 - o))
        return do, fma(dh * o, 1 - t * t, fma(do, peephole_o, dc)), do * c


@cell(gates="z i f o", states="c n m")
class Stabilised(NamedTuple):
    """Exponential gates with a normaliser n and a stabiliser m (arXiv 2405.04517): several states."""

    @forward("z i f o m")
    def gates(self, z, i, f, o, m_prev):
        f = f + m_prev
        m = i if i > f else f
        return tanh(z), exp(i - m), exp(f - m), sigmoid(o), m

    @gradient("dz di df do dm_prev")
    def through_gates(self, z, i, f, o, dz, di, df, do, dm):
        di, df = di * i, df * f
        by_m = dm - di - df
        di, df = (di + by_m, df) if i == 1 else (di, df + by_m)  # m is the larger of the two
        return dz * (1 - z * z), di, df, do * (o * (1 - o)), df

    @forward("c n h")
    def output(self, z, i, f, o, c_prev, n_prev):
        c, n = fma(f, c_prev, i * z), fma(f, n_prev, i)
        return c, n, o * c / n

    @gradient("dz di df do dc_prev dn_prev")
    def through_output(self, z, i, f, o, c_prev, n_prev, c, n, dh, dc, dn):
        q = dh / n
        dc, dn = fma(q, o, dc), dn - q * o * c / n
        return dc * i, fma(dc, z, dn), fma(dc, c_prev, dn * n_prev), q * c, dc * f, dn * f


@cell(gates=[Gate("a", multiplies=None)], vectors=[Vector("u", -0.5, 0.75)], slots="s", smooth=False)
class Independent(NamedTuple):
    """h = b*leaky(W x + bW + u*h) + k (arXiv 1803.04831): no R, a slot, and parameters of each type."""

    scale: float = 1.5
    shift: int = 0
    flipped: bool = False

    @forward("s h")
    def output(self, a, u, h_prev):
        s = fma(u, h_prev, a)
        h = leaky(s) * self.scale + self.shift
        return s, -h if self.flipped else h

    @gradient("da du dh_prev")
    def back(self, s, u, h_prev, dh):
        d = dh * self.scale * (1 if s > 0 else SLOPE)
        d = -d if self.flipped else d
        return d, d * h_prev, d * u


@cell(gates=[Gate("f", multiplies=None), Gate("z", multiplies=None)], states="c")
class Feedforward(NamedTuple):
    """c = f*c + (1-f)*z, h = tanh(c): nothing of h before in it."""

    @forward("f z c")
    def gates(self, f, z, c_prev):
        f, z = sigmoid(f), tanh(z)
        return f, z, fma(f, c_prev, (1 - f) * z)

    @gradient("df dz dc_prev")
    def through_gates(self, f, z, c_prev, dc):
        return dc * (c_prev - z) * (f * (1 - f)), dc * (1 - f) * (1 - z * z), dc * f

    @forward("h")
    def output(self, c):
        return tanh(c)

    @gradient("dc")
    def through_output(self, c, dh, dc):
        t = tanh(c)
        return fma(dh, 1 - t * t, dc)


@cell(gates=[Gate("r"), Gate("n", multiplies="reset")])
class ReadTwice(NamedTuple):
    """What R multiplies stands in an equation behind it, too."""

    @forward("r reset")
    def gate(self, r, h_prev):
        r = sigmoid(r)
        return r, r * h_prev

    @gradient("dr dh_prev")
    def through_gate(self, r, h_prev, dreset):
        return dreset * h_prev * (r * (1 - r)), dreset * r

    @forward("n h")
    def output(self, n, reset):
        n = tanh(n)
        return n, fma(0.5, reset, n)

    @gradient("dn dreset")
    def through_output(self, n, dh):
        return dh * (1 - n * n), 0.5 * dh


@cell(gates=[Gate(name, input=False) for name in "ifgo"], states="c", inputs="xi xf xg xo")
class GivenInputs(NamedTuple):
    """An LSTM whose products W x are computed outside: no gate has rows of W."""

    @forward("h c")
    def step(self, i, f, g, o, xi, xf, xg, xo, c_prev):
        c = fma(sigmoid(f + xf), c_prev, sigmoid(i + xi) * tanh(g + xg))
        return sigmoid(o + xo) * tanh(c), c
