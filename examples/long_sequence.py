"""Train on a long sequence with gradient checkpointing, or with truncated backpropagation through time.

Backward needs the gates and states of every step, which take a lot of memory for a long sequence. Gradient
checkpointing saves the states of a few steps and recomputes the others; the gradient is bit-identical. Truncated
backpropagation cuts the sequence into chunks: the state is handed from chunk to chunk, the gradient is not.
"""

import time

import numpy as np

import rnnkit

T, N, H = 20_000, 4, 64
rng = np.random.default_rng(0)
net = rnnkit.LSTM(8, H, seed=0)
net.views["bias_ih_l0"][H : 2 * H] = 2  # forget gates of about 0.9, as in a trained network
x = rng.standard_normal((T, N, 8), np.float32)
dy = rng.standard_normal((T, N, H), np.float32)  # gradient of some loss with respect to every output


def megabytes(steps, checkpoint_steps=None):
    """The memory that forward saves for backward."""
    return rnnkit.workspace_nbytes(net.desc, steps, N, checkpoint_steps) / 1e6


def report(name, memory, start, dw):
    """Print memory, time, and how close the gradient is to that of the whole sequence."""
    cosine = dw @ whole / np.sqrt(dw @ dw) / np.sqrt(whole @ whole)
    same = "bit-identical" if np.array_equal(dw, whole) else f"cosine {cosine:.4f}"
    print(f"{name:30} {memory:7.2f} MB {time.perf_counter() - start:6.2f} s   {same}")


net.backward(net.forward(x[:10]).workspace, dy[:10])  # compiles
start = time.perf_counter()
y, hy, cy, workspace = net.forward(x)
outputs, whole = y.copy(), net.backward(workspace, dy).dw
report(f"all {T} steps at once", megabytes(T), start, whole)

for steps in (1024, 256):  # multiples of 1024 / N = 256; the one nearest to sqrt(T) = 141 needs least memory
    start = time.perf_counter()
    *_, workspace = net.forward(x, checkpoint_steps=steps)  # saves the states of every `steps`-th step
    dw = net.backward(workspace, dy).dw  # recomputes each segment, last to first
    report(f"a checkpoint every {steps} steps", megabytes(T, steps), start, dw)

for steps in (1000, 100, 10):
    hx = cx = workspace = None
    start, dw = time.perf_counter(), np.zeros_like(whole)
    for first in range(0, T, steps):
        chunk = slice(first, first + steps)
        y, hx, cx, workspace = net.forward(x[chunk], hx, cx, workspace=workspace)
        assert np.array_equal(y, outputs[chunk])  # the forward pass is exact
        net.backward(workspace, dy[chunk], dw=dw)  # adds to dw; a training loop would call the optimizer here
    report(f"truncated to {steps} steps", megabytes(steps), start, dw)
