"""An amplifier as a network in C: trained here, played by a C program.

The amplifier is made up: it drives the sound into a soft clipper whose
working point follows the loudness of the last milliseconds. An LSTM learns
it from input and output; `amplifier.c` plays a WAV file through it, block
by block.
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
    pitch, start, loudness, fall = (rng.uniform(*b, count) for b in bounds)
    waves = (np.sin(2 * np.pi * k * pitch * t) / k for k in range(1, 6))
    decay = np.exp(-np.maximum(t - start, 0) * fall) * (t > start)
    return (loudness * sum(waves) * decay).astype(np.float32)


def amplifier(x):
    """Return what the amplifier makes of sounds."""
    y, loudness = np.empty_like(x), np.zeros(x.shape[1])
    for t, sample in enumerate(x):
        loudness += (np.abs(sample) - loudness) / 100
        shift = 0.6 * loudness
        y[t] = 0.8 * (np.tanh(4 * sample + shift) - np.tanh(shift))
    return y


net = rnnkit.LSTM(1, UNITS, seed=0)
output_layer = training.init_dense(UNITS, 1, seed=1)
optimizer, workspace = training.Adam([net.weights, output_layer]), None
sounds = plucked(64, 0.5)
wanted = amplifier(sounds)
for update in range(UPDATES):
    start = rng.integers(len(sounds) - 1200)
    some = rng.choice(64, 16, replace=False)
    part = slice(start, start + 1200), some, None
    x, target = (np.ascontiguousarray(a[part]) for a in (sounds, wanted))
    y, _, _, workspace = net.forward(x, workspace=workspace)
    # without the first 200 steps, which lack the past
    found = training.dense(output_layer, y[200:], 1)
    loss = training.squared_error(found, target[200:])
    dy = np.zeros_like(y)
    dy[200:], doutput_layer = training.dense_backward(
        output_layer, y[200:], loss.gradient
    )
    gradients = [net.backward(workspace, dy).dw, doutput_layer]
    training.clip_gradient_norm(gradients, 1.0)
    optimizer.step(gradients, learning_rate=0.01 * (1 - update / UPDATES))

folder = Path("amplifier")
pcm = (plucked(1, 10.0)[:, 0] * 32767).astype("<i2")
sound = (pcm / 32768).astype(np.float32)[:, None]
expected = amplifier(sound)
y = training.dense(output_layer, net.infer(sound[:, :, None]).y, 1)[..., 0]
error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
print(f"error on another sound: {error:.3f} of its level")
net.export_c(folder, name="amp", readout=output_layer, check=True)
with wave.open(str(folder / "in.wav"), "wb") as file:
    file.setparams((1, 2, RATE, 0, "NONE", None))
    file.writeframes(pcm.tobytes())
flags = "-std=c99 -O3 -march=native -ffp-contract=off"
flags += " -fno-math-errno -fno-trapping-math"
build = f"cc {flags} amplifier.c amp.c -o amplifier -lm".split()
shutil.copy(Path(__file__).with_suffix(".c"), folder)
subprocess.run(build, cwd=folder, check=True)
play = [folder / "amplifier", folder / "in.wav", folder / "out.wav"]
print(subprocess.check_output(play, text=True).strip())
with wave.open(str(folder / "out.wav")) as file:
    played = np.frombuffer(file.readframes(len(pcm)), "<i2") / 32767
difference = np.abs(played - y[:, 0].clip(-1, 1)).max()
print(f"it plays what the network computes: {difference < 1e-4}")
