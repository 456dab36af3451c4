"""
The waveform of an amplifier in C
=================================

An LSTM learns an amplifier from its sound, and becomes C without memory
allocation. The C program is compiled and compared bit by bit.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import rnnkit
from rnnkit import training

RATE, UNITS, UPDATES = 16_000, 12, 300
rng = np.random.default_rng(0)


def plucked(count, seconds):
    """Sounds of plucked strings (samples, count, 1)."""
    t = np.arange(int(seconds * RATE))[:, None] / RATE
    pitch = rng.uniform(80, 500, count)
    loudness = rng.uniform(0.1, 0.7, count)
    waves = (np.sin(2 * np.pi * k * pitch * t) / k for k in range(1, 5))
    sound = loudness * sum(waves) * np.exp(-6 * t)
    return sound.astype(np.float32)[..., None]


def amplifier(x):
    """A soft clipper whose working point follows the loudness."""
    y, loudness = np.empty_like(x), np.zeros(x.shape[1:])
    for t, sample in enumerate(x):
        loudness += (np.abs(sample) - loudness) / 50
        shift = 0.6 * loudness
        y[t] = 0.8 * (np.tanh(4 * sample + shift) - np.tanh(shift))
    return y


net = rnnkit.LSTM(1, UNITS, seed=0)
output_layer = training.init_dense(UNITS, 1, seed=1)
optimizer, workspace = training.Adam([net.weights, output_layer]), None
sounds = plucked(32, 0.25)
wanted = amplifier(sounds)
for update in range(UPDATES):
    start = rng.integers(len(sounds) - 600)
    x, target = (one[start : start + 600] for one in (sounds, wanted))
    y, _, _, workspace = net.forward(x, workspace=workspace)
    found = training.dense(output_layer, y[100:], 1)
    loss = training.squared_error(found, target[100:])
    dy = np.zeros_like(y)
    dy[100:], doutput_layer = training.dense_backward(
        output_layer, y[100:], loss.gradient
    )
    gradients = [net.backward(workspace, dy).dw, doutput_layer]
    training.clip_gradient_norm(gradients, 1.0)
    optimizer.step(gradients, learning_rate=0.01 * (1 - update / UPDATES))

# %%
# `check=True` compiles the C files, and compares every bit of their output
# with the network's.

with tempfile.TemporaryDirectory() as folder:
    files = net.export_c(
        folder, name="amp", readout=output_layer, check=True
    )
    for path in files:
        lines = len(Path(path).read_text().splitlines())
        print(f"{Path(path).name}: {lines} lines")

sound = plucked(1, 0.25)
played = training.dense(output_layer, net.infer(sound).y, 1)
expected = amplifier(sound)
error = np.linalg.norm(played - expected) / np.linalg.norm(expected)
print(f"error on another sound: {error:.3f} of its level")

# %%
part = slice(200, 600)
milliseconds = np.arange(len(sound))[part] / RATE * 1000
plt.figure(figsize=(7, 3.5))
plt.plot(milliseconds, sound[part, 0, 0], color="silver", label="input")
plt.plot(milliseconds, expected[part, 0, 0], label="amplifier", linewidth=3)
plt.plot(milliseconds, played[part, 0, 0], label="network", color="black")
plt.xlabel("ms")
plt.legend(loc="upper right")
plt.tight_layout()
plt.show()
