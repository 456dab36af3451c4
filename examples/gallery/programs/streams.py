"""
A thousand streams
==================

One plan keeps the states of a thousand sensors that send values at random
times. The error of a forecast falls with the values that it has seen.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

import rnnkit
from rnnkit import training

STREAMS, TICKS = 1000, 120
rng = np.random.default_rng(0)


def sensors(count, steps):
    """Sums of two waves of unknown periods, and noise (steps, count)."""
    t = np.arange(steps)[:, None]
    period = rng.uniform(6, 40, (2, count))
    phase = rng.uniform(0, 2 * np.pi, (2, count))
    waves = np.sin(2 * np.pi * t[None] / period[:, None] + phase[:, None])
    noise = rng.normal(scale=0.05, size=(steps, count))
    return (waves.sum(axis=0) / 2 + noise).astype(np.float32)


net = rnnkit.GRU(1, 48, seed=0)
output_layer = training.init_dense(48, 1, seed=1)
optimizer, workspace = training.Adam([net.weights, output_layer]), None
for update in range(400):
    values = sensors(32, 101)[:, :, None]
    y, _, _, workspace = net.forward(values[:-1], workspace=workspace)
    found = training.dense(output_layer, y, 1)
    loss = training.squared_error(found, values[1:])
    dy, doutput_layer = training.dense_backward(
        output_layer, y, loss.gradient
    )
    gradients = [net.backward(workspace, dy).dw, doutput_layer]
    training.clip_gradient_norm(gradients, 1.0)
    optimizer.step(gradients, learning_rate=0.01 * (1 - update / 400))

# %%
# At each tick most sensors send a value; only their rows take a step.

values = sensors(STREAMS, TICKS + 1)
forecast = np.full_like(values, np.nan)
stream, seen = net.prepare().stream(STREAMS), np.zeros(STREAMS, int)
seconds = 0.0
for _ in range(TICKS):
    rows = np.flatnonzero(rng.random(STREAMS) < 0.8)
    start = time.perf_counter()
    y = stream.step(values[seen[rows], rows][:, None], rows=rows)
    seconds += time.perf_counter() - start
    seen[rows] += 1
    forecast[seen[rows], rows] = training.dense(output_layer, y, 1)[:, 0]
print(f"{seen.sum():,} values, {seconds / seen.sum() * 1e6:.2f} us each")

shown = np.arange(1, 80)
errors = np.abs(forecast[shown] - values[shown])
last = np.abs(values[shown - 1] - values[shown])
low, middle, high = np.nanquantile(errors, [0.1, 0.5, 0.9], axis=1)
plt.figure(figsize=(7, 3.5))
plt.fill_between(shown, low, high, alpha=0.3, label="80 % of the sensors")
plt.plot(shown, middle, label="median error of the network")
plt.plot(shown, np.median(last, axis=1), "--", label="the last value again")
plt.xlabel("values seen from a sensor")
plt.ylim(0, 0.4)
plt.legend()
plt.tight_layout()
plt.show()
