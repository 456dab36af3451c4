"""
The gates of an LSTM over time
==============================

An LSTM learns to remember one marked number out of forty. Its input gates
open at the mark, and its forget gates hold what they let in.
"""

import matplotlib.pyplot as plt
import numpy as np

import rnnkit
from rnnkit import training

STEPS, UNITS = 40, 12
rng = np.random.default_rng(0)


def problems(count):
    """Random numbers with one mark (T, N, 2), and the marked numbers."""
    x = np.zeros((STEPS, count, 2), np.float32)
    x[:, :, 0] = rng.uniform(-1, 1, (STEPS, count))
    marked = rng.integers(STEPS - 5, size=count)
    x[marked, np.arange(count), 1] = 1
    return x, x[marked, np.arange(count), 0][:, None]


# %%
# Training: the output of the last step is compared with the number.

net = rnnkit.LSTM(2, UNITS, seed=0)
# forget gates (the second of i, f, g, o) start open
net.views["bias_ih_l0"][UNITS : 2 * UNITS] = 2
output_layer = training.init_dense(UNITS, 1, seed=1)
optimizer, workspace = training.Adam([net.weights, output_layer]), None
for update in range(1500):
    x, target = problems(64)
    y, hy, cy, workspace = net.forward(x, workspace=workspace)
    found = training.dense(output_layer, hy[0], 1)
    loss = training.squared_error(found, target)
    dhy, doutput_layer = training.dense_backward(
        output_layer, hy[0], loss.gradient
    )
    gradients = [net.backward(workspace, dhy=dhy[None]).dw, doutput_layer]
    training.clip_gradient_norm(gradients, 1.0)
    optimizer.step(gradients, learning_rate=0.01 * (1 - update / 1500))
    if update % 300 == 299:
        print(f"update {update + 1}: mean squared error {loss.loss:.4f}")

# %%
# The gates of one sequence, by their equations, from the outputs y: h of
# the step before is y shifted by one step.

x, target = problems(1)
y = net.infer(x).y
h_before = np.concatenate([np.zeros_like(y[:1]), y[:-1]])
w, r = net.views["weight_ih_l0"], net.views["weight_hh_l0"]
bias = net.views["bias_ih_l0"] + net.views["bias_hh_l0"]
sums = x[:, 0] @ w.T + h_before[:, 0] @ r.T + bias
gates = 1 / (1 + np.exp(-sums[:, : 2 * UNITS])).T

figure, axes = plt.subplots(3, sharex=True, figsize=(7, 5))
axes[0].bar(range(STEPS), x[:, 0, 0], color="silver")
mark = x[:, 0, 1].argmax()
axes[0].bar(mark, x[mark, 0, 0], color="tab:red")
axes[0].set_ylabel("input")
names = "input gates", "forget gates"
for ax, name, one in zip(axes[1:], names, np.split(gates, 2), strict=True):
    ax.imshow(one, aspect="auto", vmin=0, vmax=1, cmap="viridis")
    ax.axvline(mark, color="tab:red", linewidth=1)
    ax.set_ylabel(name)
axes[2].set_xlabel("step; the mark is red")
plt.tight_layout()
plt.show()
