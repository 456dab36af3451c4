"""
A forecaster in a compiled loop
===============================

A GRU reads its own output, five hundred steps long, inside a function that
Numba compiles. The loop runs without Python between the steps.
"""

import time

import matplotlib.pyplot as plt
import numba
import numpy as np

import rnnkit
from rnnkit import compiled, training

UNITS = 24
rng = np.random.default_rng(0)
t = np.arange(2000, dtype=np.float32)
song = 0.6 * np.sin(t / 5) + 0.4 * np.sin(t / 13)

net = rnnkit.GRU(1, UNITS, seed=0)
output_layer = training.init_dense(UNITS, 1, seed=1)
optimizer, workspace = training.Adam([net.weights, output_layer]), None
for update in range(900):
    start = rng.integers(len(song) - 121, size=16)
    part = song[start + np.arange(121)[:, None]][..., None]
    noise = 0.02 * rng.standard_normal(part[:-1].shape, np.float32)
    y, _, _, workspace = net.forward(part[:-1] + noise, workspace=workspace)
    found = training.dense(output_layer, y[20:], 1)
    loss = training.squared_error(found, part[21:])
    dy = np.zeros_like(y)
    dy[20:], doutput_layer = training.dense_backward(
        output_layer, y[20:], loss.gradient
    )
    gradients = [net.backward(workspace, dy).dw, doutput_layer]
    training.clip_gradient_norm(gradients, 1.0)
    optimizer.step(gradients, learning_rate=0.01 * (1 - update / 900))
print(f"mean squared error of one step: {loss.loss:.5f}")


# %%
@numba.njit
def forecast(handle, weights, bias, history, steps):
    h = np.zeros((1, len(weights)), np.float32)
    x, path = np.empty(1, np.float32), np.empty(steps, np.float32)
    for value in history:
        x[0] = value
        compiled.step(handle, x, h)
    for t in range(steps):
        path[t] = bias + (weights * h[-1]).sum()
        x[0] = path[t]
        compiled.step(handle, x, h)
    return path


handle = net.prepare().compiled()
readout = output_layer[:UNITS], output_layer[UNITS]
forecast(handle, *readout, song[:2], 2)  # compiles
start = time.perf_counter()
path = forecast(handle, *readout, song[:1000], 500)
nanoseconds = (time.perf_counter() - start) / 1500 * 1e9
print(f"{nanoseconds:.0f} ns a step")

# %%
plt.figure(figsize=(8, 3))
plt.plot(np.arange(850, 1500), song[850:1500], color="silver", linewidth=3)
plt.plot(np.arange(1000, 1500), path, color="tab:red", linewidth=1)
plt.axvline(1000, color="grey", linestyle="dotted")
plt.xlabel("step; grey: the song, red: what the network goes on with")
plt.tight_layout()
plt.show()
