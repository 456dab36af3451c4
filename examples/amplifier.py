"""An amplifier as a network in C: trained here, played by a C program.

The amplifier is made up: it drives the sound into a soft clipper whose working point follows the loudness of the last
milliseconds. An LSTM learns it from input and output; `amplifier.c` plays a WAV file through it, block by block.
"""

import shutil
import subprocess
import wave
from pathlib import Path

import numpy as np

import rnnkit
from rnnkit import training

RATE, UNITS, UPDATES = 48_000, 16, 500
rng = np.random.default_rng(0)


def plucked(count, seconds):
    """Return sounds of plucked strings, (samples, count)."""
    t = np.arange(int(seconds * RATE))[:, None] / RATE
    bounds = (80, 600), (0, 0.1), (0.05, 0.6), (2, 20)
    pitch, start, loudness, fall = (rng.uniform(*own, count) for own in bounds)
    harmonics = sum(np.sin(2 * np.pi * k * pitch * t) / k for k in range(1, 6))
    return (loudness * harmonics * np.exp(-np.maximum(t - start, 0) * fall) * (t > start)).astype(np.float32)


def amplifier(x):
    """Return what the amplifier makes of sounds."""
    y, loudness = np.empty_like(x), np.zeros(x.shape[1])
    for t, sample in enumerate(x):
        loudness += (np.abs(sample) - loudness) / 100
        y[t] = 0.8 * (np.tanh(4 * sample + 0.6 * loudness) - np.tanh(0.6 * loudness))
    return y


net, output_layer = rnnkit.LSTM(1, UNITS, seed=0), training.init_dense(UNITS, 1, seed=1)
optimizer, workspace, sounds = training.Adam([net.weights, output_layer]), None, plucked(64, 0.5)
wanted = amplifier(sounds)
for update in range(UPDATES):
    start, some = rng.integers(len(sounds) - 1200), rng.choice(64, 16, replace=False)
    x, target = (np.ascontiguousarray(part[start : start + 1200, some, None]) for part in (sounds, wanted))
    y, _, _, workspace = net.forward(x, workspace=workspace)
    loss = training.squared_error(training.dense(output_layer, y[200:], 1), target[200:])  # first it lacks the past
    dy = np.zeros_like(y)
    dy[200:], doutput_layer = training.dense_backward(output_layer, y[200:], loss.gradient)
    gradients = [net.backward(workspace, dy).dw, doutput_layer]
    training.clip_gradient_norm(gradients, 1.0)
    optimizer.step(gradients, learning_rate=0.01 * (1 - update / UPDATES))

folder, pcm = Path("amplifier"), (plucked(1, 10.0)[:, 0] * 32767).astype("<i2")
sound = (pcm / 32768).astype(np.float32)[:, None]
expected, y = amplifier(sound), training.dense(output_layer, net.infer(sound[:, :, None]).y, 1)[:, :, 0]
print(f"error on another sound: {np.linalg.norm(y - expected) / np.linalg.norm(expected):.3f} of its level")
net.export_c(folder, name="amp", readout=output_layer, check=True)
with wave.open(str(folder / "in.wav"), "wb") as file:
    file.setparams((1, 2, RATE, 0, "NONE", None))
    file.writeframes(pcm.tobytes())
flags = "-std=c99", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"
shutil.copy(Path(__file__).with_suffix(".c"), folder)
subprocess.run(["cc", *flags, "amplifier.c", "amp.c", "-o", "amplifier", "-lm"], cwd=folder, check=True)
print(subprocess.check_output([folder / "amplifier", folder / "in.wav", folder / "out.wav"], text=True).strip())
with wave.open(str(folder / "out.wav")) as file:
    difference = np.frombuffer(file.readframes(len(pcm)), "<i2") / 32767 - y[:, 0].clip(-1, 1)
print(f"it plays what the network computes: {np.abs(difference).max() < 1e-4}")
