"""coRNN: coupled damped oscillators, driven by x."""

from typing import NamedTuple

from .cell import Gate, cell, forward
from .functions import fma, tanh


@cell(gates=["a", Gate("v", multiplies="z_prev", input=False)], states="z")
class CoRNN(NamedTuple):
    """Rusch and Mishra, "Coupled Oscillatory Recurrent Neural Network (coRNN)", arXiv 2010.00951: h is the position of
    an oscillator, z its velocity.

        z' = z + dt*(tanh(Wa x + Ra h + Rv z + biases) - gamma*h - epsilon*z)       h' = h + dt*z'

    This is the paper's scheme with explicit damping. The paper chooses dt, gamma and epsilon for each task; the
    defaults are those for sequential MNIST.
    """

    dt: float = 0.042
    gamma: float = 2.7
    epsilon: float = 4.7

    @forward("z h")
    def step(self, a, v, h_prev, z_prev):
        force = tanh(a + v) - self.gamma * h_prev - self.epsilon * z_prev
        z = fma(self.dt, force, z_prev)
        return z, fma(self.dt, z, h_prev)
