"""Relatives of the LSTM: other gates, other ways from the cell to the
output."""

from typing import NamedTuple

from rnnkit.cells import (
    Activation,
    Gate,
    ScaledTanh,
    cell,
    fma,
    forward,
    sigmoid,
    tanh,
    value,
)


@cell(gates="i n o", states="c")
class OriginalLSTM(NamedTuple):
    """The first LSTM, which never forgets.

    Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation
    9(8), 1997:

        i, o = s(W x + R h + biases)
        n = 4*s(same) - 2
        c' = c + i*n
        h' = o*(2*s(c') - 1)

    torchrecurrent has tanh in place of both:
    `OriginalLSTM(Tanh(), Tanh())`.
    """

    candidate: Activation = ScaledTanh(2.0, 0.5)  # 4*s(x) - 2 = 2*tanh(x/2)
    output: Activation = ScaledTanh(1.0, 0.5)

    @forward("c h")
    def step(self, i, n, o, c_prev):
        c = fma(sigmoid(i), value(self.candidate, n), c_prev)
        return c, sigmoid(o) * value(self.output, c)


@cell(
    gates=[Gate(name, multiplies="v_prev") for name in "fiomn"],
    states="v c",
)
class MCLSTM(NamedTuple):
    """The LSTM whose gates see a control vector v and not its output.

    Shwartz-Ziv and others, "Sequence Modeling Using a Memory Controller
    Extension for LSTM", NIPS Time Series Workshop, 2017:

        f, i, o, m = s(W x + R v + biases)
        n = tanh(same)
        c' = f*c + i*n
        h' = o*tanh(c')
        v' = m*tanh(c')
    """

    @forward("v c h")
    def step(self, f, i, o, m, n, c_prev):
        c = fma(sigmoid(f), c_prev, sigmoid(i) * tanh(n))
        shown = tanh(c)
        return sigmoid(m) * shown, c, sigmoid(o) * shown


@cell(
    gates=[
        *"ifno",
        *(
            Gate(f"m{name}", multiplies=of, input=False)
            for name, of in zip(
                "ifo", ["c_prev", "c_prev", "c"], strict=True
            )
        ),
    ],
    states="c",
)
class WMCLSTM(NamedTuple):
    """The LSTM whose gates look at its cell through a matrix and a tanh.

    Landi et al., "Working Memory Connections for LSTM", arXiv 2109.00020:

        i = s(W x + R h + tanh(Rmi c) + biases)
        f = s(W x + R h + tanh(Rmf c) + biases)
        n = tanh(W x + R h + biases)
        c' = f*c + i*n
        o = s(W x + R h + tanh(Rmo c') + biases)
        h' = o*tanh(c')

    The paper has no biases within the tanh around a product with c: leave
    them at 0.
    """

    @forward("c")
    def remember(self, i, f, n, mi, mf, c_prev):
        return fma(
            sigmoid(f + tanh(mf)), c_prev, sigmoid(i + tanh(mi)) * tanh(n)
        )

    @forward("h")
    def expose(self, o, mo, c):
        return sigmoid(o + tanh(mo)) * tanh(c)


@cell(
    gates=["i", "f", "n", "o", Gate("p", multiplies="shown")],
    states="c",
    vectors="peephole_i peephole_f peephole_o",
)
class ResLSTM(NamedTuple):
    """The LSTM with a shortcut from x to its output.

    Kim, El-Khamy and Lee, "Residual LSTM: Design of a Deep Recurrent
    Architecture for Distant Speech Recognition", arXiv 1701.03360:

        i = s(W x + R h + peephole_i*c + biases)
        f = s(W x + R h + peephole_f*c + biases)
        n = tanh(W x + R h + biases)
        c' = f*c + i*n
        o = s(W x + R h + peephole_o*c' + biases)
        h' = o*(Wp x + Rp tanh(c'))

    Wp x is the shortcut. It has no biases in the paper: leave those of p at
    0.
    """

    @forward("c shown")
    def remember(self, i, f, n, c_prev, peephole_i, peephole_f):
        i = sigmoid(fma(peephole_i, c_prev, i))
        f = sigmoid(fma(peephole_f, c_prev, f))
        c = fma(f, c_prev, i * tanh(n))
        return c, tanh(c)

    @forward("h")
    def expose(self, o, p, c, peephole_o):
        return sigmoid(fma(peephole_o, c, o)) * p


@cell(gates=[f"a{number}" for number in range(8)], states="c", smooth=False)
class NAS(NamedTuple):
    """The cell found by a search over architectures.

    Zoph and Le, "Neural Architecture Search with Reinforcement Learning",
    arXiv 1611.01578; a0 to a7 = W x + R h + biases of the gate:

        p = tanh(s(a0)*relu(a1))
        q = tanh(s(a2) + relu(a3))
        r = tanh(tanh(a4)*s(a5))
        u = s(tanh(a6) + s(a7))
        c' = tanh(p + c)*q
        h' = tanh(c'*tanh(r + u))
    """

    @forward("c h")
    def step(self, a0, a1, a2, a3, a4, a5, a6, a7, c_prev):
        p = tanh(sigmoid(a0) * max(a1, 0))
        q = tanh(sigmoid(a2) + max(a3, 0))
        r, u = tanh(tanh(a4) * sigmoid(a5)), sigmoid(tanh(a6) + sigmoid(a7))
        c = tanh(p + c_prev) * q
        return c, tanh(c * tanh(r + u))
