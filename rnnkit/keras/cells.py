"""Keras's cells with activations of choice, and those with recurrent dropout, which masks h for each gate anew.

`rnnkit.cells.ActivatedLSTM` is the LSTM without dropout. For each unit a mask k is 0 with probability
`recurrent_dropout`, else 1/(1 - recurrent_dropout), at all steps of a sequence; in inference k = 1.
"""

from __future__ import annotations

from typing import NamedTuple

from rnnkit.cells import ActivatedLSTM, Activation, Gate, Noise, Sigmoid, Tanh, cell, fma, forward, value


def _masked(names: str) -> list[Noise]:
    return [Noise(f"k{name}", "recurrent_dropout") for name in names]


@cell(gates="a")
class ActivatedRNN(NamedTuple):
    """h' = t(W x + R h + b)."""

    candidate: Activation = Tanh()

    @forward("h")
    def step(self, a):
        return value(self.candidate, a)


@cell(gates=[Gate("a", "ha")], noises=_masked("a"))
class DroppedRNN(NamedTuple):
    """`ActivatedRNN` with k*h in the place of h."""

    candidate: Activation = Tanh()
    recurrent_dropout: float = 0.0

    @forward("ha")
    def mask(self, h_prev, ka):
        return ka * h_prev

    step = ActivatedRNN.step  # type: ignore[misc]


@cell(gates=[Gate("r"), Gate("z"), Gate("n", apart="q")])
class ActivatedGRU(NamedTuple):
    """r, z = s(W x + R h + b)    n = t(Wn x + bWn + r*(Rn h + bRn))    h' = z*h + (1 - z)*n."""

    gate: Activation = Sigmoid()
    candidate: Activation = Tanh()

    @forward("r z")
    def gates(self, r, z):
        return value(self.gate, r), value(self.gate, z)

    @forward("n h")
    def output(self, r, z, n, q, h_prev):
        n = value(self.candidate, fma(r, q, n))
        return n, fma(z, h_prev, (1 - z) * n)


@cell(gates=[Gate("r", "hr"), Gate("z", "hz"), Gate("n", "hn", apart="q")], noises=_masked("rzn"))
class DroppedGRU(NamedTuple):
    """`ActivatedGRU` with k*h, one mask for each gate, where R multiplies h."""

    gate: Activation = Sigmoid()
    candidate: Activation = Tanh()
    recurrent_dropout: float = 0.0

    @forward("hr hz hn")
    def mask(self, h_prev, kr, kz, kn):
        return kr * h_prev, kz * h_prev, kn * h_prev

    gates, output = ActivatedGRU.gates, ActivatedGRU.output  # type: ignore[misc]


@cell(gates=[Gate("r"), Gate("z"), Gate("n", "reset")])
class ActivatedResetBeforeGRU(NamedTuple):
    """`ActivatedGRU` with n = t(Wn x + Rn (r*h) + b)."""

    gate: Activation = Sigmoid()
    candidate: Activation = Tanh()

    @forward("r z reset")
    def gates(self, r, z, h_prev):
        r = value(self.gate, r)
        return r, value(self.gate, z), r * h_prev

    @forward("n h")
    def output(self, z, n, h_prev):
        n = value(self.candidate, n)
        return n, fma(z, h_prev, (1 - z) * n)


@cell(gates=[Gate("r", "hr"), Gate("z", "hz"), Gate("n", "reset")], noises=_masked("rzn"))
class DroppedResetBeforeGRU(NamedTuple):
    """`ActivatedResetBeforeGRU` with k*h, one mask for each gate, where R multiplies h."""

    gate: Activation = Sigmoid()
    candidate: Activation = Tanh()
    recurrent_dropout: float = 0.0

    @forward("hr hz")
    def mask(self, h_prev, kr, kz):
        return kr * h_prev, kz * h_prev

    @forward("r z reset")
    def gates(self, r, z, h_prev, kn):
        r = value(self.gate, r)
        return r, value(self.gate, z), r * (kn * h_prev)

    output = ActivatedResetBeforeGRU.output  # type: ignore[misc]


@cell(gates=[Gate(name, f"h{name}") for name in "ifgo"], states="c", noises=_masked("ifgo"))
class DroppedLSTM(NamedTuple):
    """`ActivatedLSTM` with k*h, one mask for each gate, where R multiplies h."""

    gate: Activation = Sigmoid()
    candidate: Activation = Tanh()
    output: Activation = Tanh()
    recurrent_dropout: float = 0.0

    @forward("hi hf hg ho")
    def mask(self, h_prev, ki, kf, kg, ko):
        return ki * h_prev, kf * h_prev, kg * h_prev, ko * h_prev

    update, expose = ActivatedLSTM.update, ActivatedLSTM.expose  # type: ignore[misc]
