"""A cell with side inputs."""

from typing import NamedTuple

from rnnkit.cells import Gate, cell, fma, sigmoid, tanh
from rnnkit.cells import forward as stage


@cell(gates=[Gate("r"), Gate("u"), Gate("n", apart="q")], inputs="a gap")
class Attentive(NamedTuple):
    """The GRU whose update gate is scaled by an attention, AUGRU (Zhou et al. 2018, arXiv 1809.03672), with a gap."""

    @stage("h")
    def step(self, r, u, n, q, h_prev, a, gap):
        u = a * sigmoid(u)
        n = tanh(fma(sigmoid(r), q, n)) + 0.5 * gap * h_prev
        return fma(u, n - h_prev, h_prev)


T, N, WIDTH, H = 6, 4, 3, 9
