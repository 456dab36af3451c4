"""
A cell of your own that learns its speeds
=========================================

Each unit is a leaky integrator with a speed of its own. Trained on the sum
of two smooth curves, the units become slow ones and fast ones.
"""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np

import rnnkit
from rnnkit import training
from rnnkit.cells import Vector, cell, forward, sigmoid, tanh

UNITS, STEPS = 24, 150
rng = np.random.default_rng(0)


@cell(gates="a", vectors=[Vector("speed", -2.0, 0.0)])
class Leaky(NamedTuple):
    """The new value comes in with the speed of the unit."""

    @forward("h")
    def update(self, a, speed, h_prev):
        share = sigmoid(speed)
        return share * tanh(a) + (1 - share) * h_prev


print(rnnkit.check_cell(Leaky))  # the derived gradient


def smoothed(x, decay):
    """The running mean of x, as if every step forgot a share."""
    y, now = np.empty_like(x), np.zeros_like(x[0])
    for t, value in enumerate(x):
        now = decay * now + (1 - decay) * value
        y[t] = now
    return y


net = rnnkit.Network(Leaky, 2, UNITS, seed=0)
speeds = net.views["speed_l0"]
before = np.sort(1 / (1 + np.exp(-speeds)))
output_layer = training.init_dense(UNITS, 2, seed=1)
optimizer, workspace = training.Adam([net.weights, output_layer]), None
for update in range(500):
    x = rng.standard_normal((STEPS, 16, 2), np.float32)
    fast, slow = smoothed(x[..., 0], 0.3), smoothed(x[..., 1], 0.98)
    target = np.stack([fast, 6 * slow], axis=2)
    y, _, _, workspace = net.forward(x, workspace=workspace)
    found = training.dense(output_layer, y, 2)
    loss = training.squared_error(found, target)
    dy, doutput_layer = training.dense_backward(
        output_layer, y, loss.gradient
    )
    gradients = [net.backward(workspace, dy).dw, doutput_layer]
    training.clip_gradient_norm(gradients, 1.0)
    optimizer.step(gradients, learning_rate=0.03 * (1 - update / 500))
    if update % 100 == 99:
        print(f"update {update + 1}: mean squared error {loss.loss:.4f}")

# %%
after = np.sort(1 / (1 + np.exp(-speeds)))
plt.figure(figsize=(7, 3.5))
plt.semilogy(before, "o", label="before training", color="silver")
plt.semilogy(after, "o", label="after training", color="tab:red")
plt.axhline(0.7, color="grey", linestyle="dotted")
plt.axhline(0.02, color="grey", linestyle="dotted")
plt.xlabel("units, the slowest first; dotted: the speeds of the task")
plt.ylabel("share that comes in at a step")
plt.legend()
plt.tight_layout()
plt.show()
