"""Forecast a thousand streams, one value at a time, as they come in.

Each stream is a sensor: the sum of two waves of unknown periods, phases and
amplitudes, plus noise. The network has been trained on other sensors.
`net.prepare().stream` keeps one state per sensor, and each step takes the
values of the sensors that have sent one. All that the network knows about a
sensor is in its state: the more values it has seen, the better the
forecast.
"""

import time

import numpy as np

import rnnkit
from rnnkit import training

rng = np.random.default_rng(0)


def sensors(count, steps):
    """Return the values of `count` sensors, (steps, count)."""
    t = np.arange(steps)[:, None]
    period = rng.uniform(6, 40, (2, count))
    phase = rng.uniform(0, 2 * np.pi, (2, count))
    amplitude = rng.uniform(0.5, 1, (2, count))
    angles = (2 * np.pi * t / period[k] + phase[k] for k in range(2))
    waves = sum(
        a * np.sin(b) for a, b in zip(amplitude, angles, strict=True)
    )
    noise = rng.normal(scale=0.05, size=(steps, count))
    return (waves + noise).astype(np.float32)


net = rnnkit.GRU(1, 64, seed=0)
output_layer = training.init_dense(64, 1, seed=1)
optimizer, workspace = training.Adam([net.weights, output_layer]), None
for update in range(400):
    values = sensors(32, 101)[:, :, None]  # (T + 1, N, 1)
    y, hy, _, workspace = net.forward(values[:-1], workspace=workspace)
    found = training.dense(output_layer, y, 1)
    loss = training.squared_error(found, values[1:])
    dy, doutput_layer = training.dense_backward(
        output_layer, y, loss.gradient
    )
    gradients = [net.backward(workspace, dy).dw, doutput_layer]
    training.clip_gradient_norm(gradients, 1.0)
    optimizer.step(gradients, learning_rate=0.01 * (1 - update / 400))

STREAMS, TICKS = 1000, 150
values = sensors(STREAMS, TICKS + 1)
forecast = np.full_like(values, np.nan)
# weights packed once, a row of states for each sensor
stream = net.prepare().stream(STREAMS)
seen, seconds = np.zeros(STREAMS, int), 0.0
for _ in range(TICKS):
    # the sensors that have sent a value this time
    rows = np.flatnonzero(rng.random(STREAMS) < 0.8)
    start = time.perf_counter()
    # (n, 1) in, (n, 64) out
    y = stream.step(values[seen[rows], rows][:, None], rows=rows)
    seen[rows] += 1
    forecast[seen[rows], rows] = training.dense(output_layer, y, 1)[:, 0]
    seconds += time.perf_counter() - start

print("RMSE by the number of values seen from a sensor")
print("values     network   the last value again   a straight line")
for first, stop in ((2, 5), (5, 20), (20, 50), (50, 100)):
    t = np.arange(first, stop)
    guesses = forecast[t], values[t - 1], 2 * values[t - 1] - values[t - 2]
    network, last, line = (
        np.sqrt(np.square(guess - values[t]).mean()) for guess in guesses
    )
    print(f"{first:2} to {stop - 1:2} {network:10.3f}", end=" ")
    print(f"{last:22.3f} {line:17.3f}")
print(f"{seconds / seen.sum() * 1e6:.1f} us per value")
