"""Train on a long sequence: gradient checkpointing, and backpropagation through time that is truncated.

Backward needs the gates and states of every step, which for a long sequence is much memory. There are two ways out.
With checkpoints the gradient stays what it is, and some of it is computed twice. Truncated backpropagation cuts the
sequence into chunks: the state goes on from one to the next, the gradient does not.
"""

import time

import numpy as np

import rnnkit

T, N, H = 20_000, 4, 64
rng = np.random.default_rng(0)
net = rnnkit.LSTM(8, H, seed=0)
net.views["bias_ih_l0"][H : 2 * H] = 2  # forget gates of about 0.9, as training might have left them
x = rng.standard_normal((T, N, 8), np.float32)
dy = rng.standard_normal((T, N, H), np.float32)  # the gradient of some loss by every output


def megabytes(steps, checkpoint_steps=None):
    """The memory that forward keeps for backward."""
    return rnnkit.workspace_nbytes(net.desc, steps, N, checkpoint_steps) / 1e6


def report(name, memory, start, dw):
    """Print what a gradient took, and how near it is to that of the whole sequence."""
    cosine = dw @ whole / np.sqrt(dw @ dw) / np.sqrt(whole @ whole)
    same = "bit-identical" if np.array_equal(dw, whole) else f"cosine {cosine:.4f}"
    print(f"{name:30} {memory:7.2f} MB {time.perf_counter() - start:6.2f} s   {same}")


net.backward(net.forward(x[:10]).workspace, dy[:10])  # compiles
start = time.perf_counter()
y, hy, cy, workspace = net.forward(x)
outputs, whole = y.copy(), net.backward(workspace, dy).dw
report(f"all {T} steps at once", megabytes(T), start, whole)

for steps in (1000, round(T**0.5)):  # about the square root of T is the best choice
    start = time.perf_counter()
    *_, workspace = net.forward(x, checkpoint_steps=steps)  # keeps the states of one step in so many
    dw = net.backward(workspace, dy).dw  # computes a segment again, and goes back through it
    report(f"a checkpoint every {steps} steps", megabytes(T, steps), start, dw)

for steps in (1000, 100, 10):
    start, dw, hx, cx, workspace = time.perf_counter(), np.zeros_like(whole), None, None, None
    for first in range(0, T, steps):
        chunk = slice(first, first + steps)
        y, hx, cx, workspace = net.forward(x[chunk], hx, cx, workspace=workspace)
        assert np.array_equal(y, outputs[chunk])  # the state was handed on: nothing is different forward
        hx, cx = hx.copy(), cx.copy()  # views of the workspace, which the next chunk takes
        net.backward(workspace, dy[chunk], dw=dw)  # adds to dw; a training loop would take an optimizer's step here
    report(f"truncated to {steps} steps", megabytes(steps), start, dw)
