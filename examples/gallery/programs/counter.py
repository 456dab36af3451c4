"""
A network that counts
=====================

An LSTM reads strings such as aaabbb and learns when they end. One cell
state counts up for each a and down for each b, also in longer strings.
"""

import matplotlib.pyplot as plt
import numpy as np

import rnnkit
from rnnkit import training

UNITS, LONGEST = 6, 12
rng = np.random.default_rng(0)


def string(n):
    """One-hot letters of n times a and n times b (2*n, 2), and whether the
    string ends after each."""
    letters = np.repeat([0, 1], n)
    ends = np.zeros(2 * n, np.float32)
    ends[-1] = 1
    return np.eye(2, dtype=np.float32)[letters], ends


net = rnnkit.LSTM(2, UNITS, seed=3)
net.views["bias_ih_l0"][UNITS : 2 * UNITS] = 3
output_layer = training.init_dense(UNITS, 1, seed=1)
optimizer, workspace = training.Adam([net.weights, output_layer]), None
for update in range(2500):
    strings = [string(n) for n in rng.integers(1, LONGEST + 1, 32)]
    x, lengths = training.pad([letters for letters, _ in strings])
    ends, _ = training.pad([end[:, None] for _, end in strings])
    y, hy, cy, workspace = net.forward(x, lengths=lengths)
    scores = training.dense(output_layer, y, 1)
    loss = training.sigmoid_cross_entropy(scores, ends)
    valid = np.arange(len(x))[:, None] < lengths
    gradient = loss.gradient * valid[..., None]
    dy, doutput_layer = training.dense_backward(output_layer, y, gradient)
    gradients = [net.backward(workspace, dy).dw, doutput_layer]
    training.clip_gradient_norm(gradients, 1.0)
    optimizer.step(gradients, learning_rate=0.02 * (1 - update / 2500))

# %%
# Strings longer than those of the training: does the network say that they
# end, and only at the last letter?

for n in (5, 12, 16, 20):
    letters, ends = string(n)
    y = net.infer(letters[:, None]).y
    said = training.dense(output_layer, y, 1)[:, 0, 0] > 0
    print(f"{n:2} of each: right at {np.mean(said == ends):.0%} of steps")

# %%
# The cell states of a string that is longer than any of the training.

letters, _ = string(16)
hx = cx = np.zeros((1, 1, UNITS), np.float32)
states = []
for letter in letters:
    _, hx, cx = net.infer(letter[None, None], hx, cx)
    states.append(cx[0, 0])

plt.figure(figsize=(7, 3.5))
plt.plot(np.arange(1, 33), states)
plt.axvline(16.5, color="grey", linestyle="dotted")
plt.xlabel("letters read: 16 times a, then 16 times b")
plt.ylabel("cell states")
plt.tight_layout()
plt.show()
