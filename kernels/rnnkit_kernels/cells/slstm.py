"""sLSTM: exponential gates, with a stabilizer state against overflow."""

from typing import NamedTuple

from .activations import softplus
from .cell import Gate, cell, forward
from .functions import exp, fma, sigmoid, tanh


@cell(gates="z i f o", states="c n m")
class SLSTM(NamedTuple):
    """The sLSTM of Beck et al., "xLSTM", arXiv 2405.04517, with one head; a_z ... are the pre-activations,
    W x + R h + biases:

        z = tanh(a_z)        i = exp(a_i - m')        f = exp(log f + m - m')       o = s(a_o)
        m' = max(a_i, log f + m)       c' = f*c + i*z       n' = f*n + i       h' = o*c'/n'

    The paper allows two forget gates: an exponential one, log f = a_f, or with `sigmoid_forget` log f = log s(a_f). If
    n = 0, for example before the first step, there is nothing to keep: m' = a_i, and f is at most 1. Exponents are as
    exact as m: to 3e-5 in float32 if m is 1000.
    """

    sigmoid_forget: bool = False

    @forward("c n m h")
    def step(self, z, i, f, o, c_prev, n_prev, m_prev):
        f = (-softplus(-f) if self.sigmoid_forget else f) + m_prev
        m = i if i > f or n_prev == 0 else f
        i, f = exp(i - m), exp(0 if f > m else f - m)
        c, n = fma(f, c_prev, i * tanh(z)), fma(f, n_prev, i)
        return c, n, m, sigmoid(o) * (c / n)


@cell(gates=[Gate(name, heads=4) for name in "zifo"], states="c n m")
class MultiHeadSLSTM(NamedTuple):
    """The sLSTM of Beck et al., "xLSTM", arXiv 2405.04517, with the four heads of its section 2.2: a unit reads only h
    of the units in its own head. The equations are those of `SLSTM`.
    """

    sigmoid_forget: bool = False

    step = SLSTM.step
