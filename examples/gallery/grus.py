"""Relatives of the GRU: what R multiplies is reset, one way or another."""

from typing import NamedTuple

from rnnkit.cells import Gate, cell, fma, forward, sigmoid, tanh


@cell(
    gates=[
        Gate("z", multiplies=None),
        "r",
        Gate("n", multiplies="reset", apart="q"),
    ]
)
class MUT1(NamedTuple):
    """The first of three cells found by an evolutionary search: its update
    gate does not see h.

    Jozefowicz, Zaremba and Sutskever, "An Empirical Exploration of
    Recurrent Network Architectures", ICML 2015:

        z = s(Wz x + bz)
        r = s(Wr x + Rr h + biases)
        n = tanh(Rn (r*h) + tanh(Wn x + bn) + bq)
        h' = z*n + (1 - z)*h

    The paper has tanh(x) without Wn, for as many inputs as units: that is
    Wn = 1.
    """

    @forward("reset")
    def forget(self, r, h_prev):
        return sigmoid(r) * h_prev

    @forward("h")
    def step(self, z, n, q, h_prev):
        z = sigmoid(z)
        return fma(z, tanh(tanh(n) + q), (1 - z) * h_prev)


@cell(gates=["z", "r", Gate("n", multiplies="reset")])
class MUT2(NamedTuple):
    """The second of three cells found by an evolutionary search: its reset
    gate has x without weights (Wr = 1).

    Jozefowicz, Zaremba and Sutskever, "An Empirical Exploration of
    Recurrent Network Architectures", ICML 2015:

        z = s(Wz x + Rz h + biases)
        r = s(Wr x + Rr h + biases)
        n = tanh(Wn x + Rn (r*h) + biases)
        h' = z*n + (1 - z)*h

    The paper has x without Wr, for as many inputs as units: that is Wr = 1.
    """

    @forward("reset")
    def forget(self, r, h_prev):
        return sigmoid(r) * h_prev

    @forward("h")
    def step(self, z, n, h_prev):
        z = sigmoid(z)
        return fma(z, tanh(n), (1 - z) * h_prev)


@cell(
    gates=[
        Gate("z", multiplies="squashed"),
        "r",
        Gate("n", multiplies="reset"),
    ]
)
class MUT3(NamedTuple):
    """The third of three cells found by an evolutionary search: its update
    gate sees tanh(h).

    Jozefowicz, Zaremba and Sutskever, "An Empirical Exploration of
    Recurrent Network Architectures", ICML 2015:

        z = s(Wz x + Rz tanh(h) + biases)
        r = s(Wr x + Rr h + biases)
        n = tanh(Wn x + Rn (r*h) + biases)
        h' = z*n + (1 - z)*h
    """

    @forward("reset squashed")
    def forget(self, r, h_prev):
        return sigmoid(r) * h_prev, tanh(h_prev)

    @forward("h")
    def step(self, z, n, h_prev):
        z = sigmoid(z)
        return fma(z, tanh(n), (1 - z) * h_prev)


@cell(gates=["r", Gate("n", multiplies="reset")])
class MiRU1(NamedTuple):
    """The GRU with a number for its update gate.

    Zyarah and Kudithipudi, "Minion Gated Recurrent Unit for Continual
    Learning", arXiv 2503.06175:

        r = s(Wr x + Rr h + biases)
        n = tanh(Wn x + Rn (r*h) + biases)
        h' = keep*h + (1 - keep)*n
    """

    keep: float = 0.5

    @forward("reset")
    def forget(self, r, h_prev):
        return sigmoid(r) * h_prev

    @forward("h")
    def step(self, n, h_prev):
        return fma(self.keep, h_prev, (1 - self.keep) * tanh(n))


@cell(gates=[Gate("n", apart="q")])
class MiRU2(NamedTuple):
    """The GRU with a number for each of its gates.

    Zyarah and Kudithipudi, "Minion Gated Recurrent Unit for Continual
    Learning", arXiv 2503.06175:

        n = tanh(Wn x + bn + reset*(Rn h + bq))
        h' = keep*h + (1 - keep)*n

    The paper has R (reset*h): leave bq at 0.
    """

    keep: float = 0.5
    reset: float = 0.5

    @forward("h")
    def step(self, n, q, h_prev):
        return fma(
            self.keep, h_prev, (1 - self.keep) * tanh(fma(self.reset, q, n))
        )
