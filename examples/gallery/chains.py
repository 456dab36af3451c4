"""Cells with several products in a chain within one step."""

from typing import NamedTuple

from rnnkit.cells import Gate, cell, fma, forward, sigmoid, tanh


@cell(
    gates=[
        "n1",
        "t1",
        Gate("n2", multiplies="s1", input=False),
        Gate("t2", multiplies="s1", input=False),
        Gate("n3", multiplies="s2", input=False),
        Gate("t3", multiplies="s2", input=False),
    ],
)
class RHN(NamedTuple):
    """The recurrent highway network: a step is three layers deep.

    Zilly et al., "Recurrent Highway Networks", arXiv 1607.03474, of depth 3
    and with coupled gates:

        n1 = tanh(W x + R h + biases)
        t1 = s(same)
        s1 = t1*n1 + (1 - t1)*h
        n2 = tanh(R s1 + bias)
        t2 = s(same)
        s2 = t2*n2 + (1 - t2)*s1
        n3 = tanh(R s2 + bias)
        t3 = s(same)
        h' = t3*n3 + (1 - t3)*s2

    Another depth is another class, with more gates and stages of the same
    kind.
    """

    @forward("s1")
    def first(self, n1, t1, h_prev):
        return fma(sigmoid(t1), tanh(n1) - h_prev, h_prev)

    @forward("s2")
    def second(self, n2, t2, s1):
        return fma(sigmoid(t2), tanh(n2) - s1, s1)

    @forward("h")
    def third(self, n3, t3, s2):
        return fma(sigmoid(t3), tanh(n3) - s2, s2)


@cell(
    gates=[
        Gate("b", multiplies=None),
        Gate("a", multiplies="k_prev"),
        Gate("p", multiplies="s", input=False),
        Gate("u", multiplies="k", input=False),
        Gate("v", multiplies="s", input=False),
    ],
    states="s k",
)
class SCRN(NamedTuple):
    """Units s that change slowly, beside a vanilla cell k.

    Mikolov et al., "Learning Longer Memory in Recurrent Neural Networks",
    arXiv 1412.7753:

        s' = (1 - alpha)*(Wb x + bb) + alpha*s
        k' = s(Wa x + Ra k + Rp s' + biases)
        h' = tanh(Ru k' + Rv s' + biases)

    The paper has a softmax over words in place of the last tanh.
    torchrecurrent multiplies Ra by h in place of k, and learns alpha.
    """

    alpha: float = 0.95

    @forward("s")
    def drift(self, b, s_prev):
        return fma(self.alpha, s_prev, (1 - self.alpha) * b)

    @forward("k")
    def hide(self, a, p):
        return sigmoid(a + p)

    @forward("h")
    def expose(self, u, v):
        return tanh(u + v)
