"""The LSTM with exponential gates, its sums kept in range by a stabiliser."""

from typing import NamedTuple

from .activations import softplus
from .cell import cell, forward, gradient
from .functions import exp, fma, sigmoid, tanh


@cell(gates="z i f o", states="c n m", slots="slope")
class SLSTM(NamedTuple):
    """The sLSTM of Beck et al., "xLSTM", arXiv 2405.04517, with one head; a_z ... = W x + R h + biases of the gate:

        z = tanh(a_z)        i = exp(a_i - m')        f = exp(log f + m - m')       o = s(a_o)
        m' = max(a_i, log f + m)       c' = f*c + i*z       n' = f*n + i       h' = o*c'/n'

    The paper leaves the forget gate open: log f = a_f, an exponential one, or with `sigmoid_forget` log s(a_f). Where
    n = 0, before the first step say, there is nothing to keep: m' = a_i, and f is at most 1. An exponent is as exact as
    m is: that of 1000 in float32 to 3e-5.
    """

    sigmoid_forget: bool = False

    @forward("z i f o slope m")
    def gates(self, z, i, f, o, n_prev, m_prev):
        slope = 1
        if self.sigmoid_forget:
            slope, f = sigmoid(-f), -softplus(-f)
        f = f + m_prev
        m = i if i > f or n_prev == 0 else f
        return tanh(z), exp(i - m), exp(0 if f > m else f - m), sigmoid(o), slope, m

    @gradient("dz di df do dm_prev")
    def through_gates(self, z, i, f, o, slope, dz, di, df, do, dm):
        di, df = di * i, df * f
        by_m = dm - di - df
        di, df = (di + by_m, df) if i == 1 else (di, df + by_m)  # m is the larger of the two
        return dz * (1 - z * z), di, df * slope, do * (o * (1 - o)), df

    @forward("c n h")
    def output(self, z, i, f, o, c_prev, n_prev):
        c, n = fma(f, c_prev, i * z), fma(f, n_prev, i)
        return c, n, o * (c / n)

    @gradient("dz di df do dc_prev dn_prev")
    def through_output(self, z, i, f, o, c_prev, n_prev, c, n, dh, dc, dn):
        mean, q = c / n, dh * o / n
        dc, dn = dc + q, fma(-q, mean, dn)
        return dc * i, fma(dc, z, dn), fma(dc, c_prev, dn * n_prev), dh * mean, dc * f, dn * f
