"""Cells that are steps of differential equations."""

from typing import NamedTuple

import numpy as np

from rnnkit.cells import Gate, Vector, cell, fma, forward, sigmoid, tanh


def antisymmetric(w, gamma=0.01):
    """The matrix R = w - w.T - gamma*I of an antisymmetric cell. Of a
    gradient dR that by w is dR - dR.T."""
    return w - w.T - gamma * np.eye(len(w), dtype=w.dtype)


@cell(gates="a")
class AntisymmetricRNN(NamedTuple):
    """A step of a stable differential equation.

    Chang et al., "AntisymmetricRNN: A Dynamical System View on Recurrent
    Neural Networks", arXiv 1902.09689; R is made outside, see
    `antisymmetric`:

        R = w - w.T - gamma*I
        h' = h + epsilon*tanh(W x + R h + biases)
    """

    epsilon: float = 0.01

    @forward("h")
    def step(self, a, h_prev):
        return fma(self.epsilon, tanh(a), h_prev)


@cell(gates=[Gate("z", multiplies=None), Gate("n", apart="q")])
class GatedAntisymmetricRNN(NamedTuple):
    """A step of a stable differential equation, with a gate that has the
    same R.

    Chang et al., "AntisymmetricRNN: A Dynamical System View on Recurrent
    Neural Networks", arXiv 1902.09689; R is made outside, see
    `antisymmetric`:

        R = w - w.T - gamma*I
        h' = h + epsilon*s(Wz x + R h + bz)*tanh(Wn x + R h + bn)

    bz and bn are biases of W; leave that of R at 0. torchrecurrent has a
    third one, which it adds to bn.
    """

    epsilon: float = 0.01

    @forward("h")
    def step(self, z, n, q, h_prev):
        return fma(self.epsilon, sigmoid(z + q) * tanh(n + q), h_prev)


@cell(
    gates=[Gate("a", multiplies=None)],
    states="z",
    vectors=[Vector("u", 0, 1), Vector("pace", -0.1, 0.1)],
)
class UnICORNN(NamedTuple):
    """Undamped oscillators, each with its own pace, independent of each
    other within a layer.

    Rusch and Mishra, "UnICORNN: A recurrent model for learning very long
    time dependencies", arXiv 2103.05487:

        z' = z - dt*s(pace)*(tanh(W x + bW + u*h) + alpha*h)
        h' = h + dt*s(pace)*z'

    dt and alpha are chosen for each task.
    """

    dt: float = 0.1
    alpha: float = 0.0

    @forward("z h")
    def step(self, a, u, pace, h_prev, z_prev):
        dt = self.dt * sigmoid(pace)
        z = z_prev - dt * fma(self.alpha, h_prev, tanh(fma(u, h_prev, a)))
        return z, fma(dt, z, h_prev)
