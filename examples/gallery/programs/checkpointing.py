"""
The memory of a long sequence
=============================

Gradient checkpointing trades memory for a second forward pass, bit by bit
the same. Truncation saves memory, too, but changes the gradient.
"""

import matplotlib.pyplot as plt
import numpy as np

import rnnkit

T, N, H = 4096, 4, 32
rng = np.random.default_rng(0)
net = rnnkit.LSTM(8, H, seed=0)
net.views["bias_ih_l0"][H : 2 * H] = 2  # forget gates of about 0.9
x = rng.standard_normal((T, N, 8), np.float32)
dy = rng.standard_normal((T, N, H), np.float32)
whole = net.backward(net.forward(x).workspace, dy).dw


def megabytes(steps, checkpoint_steps=None):
    """What forward keeps for backward."""
    nbytes = rnnkit.workspace_nbytes(net.desc, steps, N, checkpoint_steps)
    return nbytes / 1e6


# %%
# Checkpoints: the states of every so many steps are kept.

segments, memory = [256, 512, 1024, 2048], []
for steps in segments:
    *_, workspace = net.forward(x, checkpoint_steps=steps)
    dw = net.backward(workspace, dy).dw
    memory.append(megabytes(T, steps))
    same = np.array_equal(dw, whole)
    print(f"a checkpoint every {steps:4} steps: bit-identical: {same}")

# %%
# Truncation: the state goes on to the next chunk, the gradient does not.

chunks, angles = [4, 16, 64, 256, 1024], []
for steps in chunks:
    hx = cx = None
    dw = np.zeros_like(whole)
    for first in range(0, T, steps):
        part = slice(first, first + steps)
        y, hx, cx, workspace = net.forward(x[part], hx, cx)
        net.backward(workspace, dy[part], dw=dw)
    cosine = dw @ whole / np.sqrt((dw @ dw) * (whole @ whole))
    angles.append(np.degrees(np.arccos(min(cosine, 1))))
    print(f"truncated to {steps:4} steps: {angles[-1]:.1f} degrees off")

# %%
plt.figure(figsize=(7, 3.5))
plt.plot(memory, np.zeros(len(memory)), "o", label="checkpoints")
plt.plot([megabytes(n) for n in chunks], angles, "o-", label="truncated")
plt.plot(megabytes(T), 0, "ks", label="all steps at once")
plt.xscale("log")
plt.xlabel("MB of memory")
plt.ylabel("angle to the gradient, degrees")
plt.legend()
plt.tight_layout()
plt.show()
