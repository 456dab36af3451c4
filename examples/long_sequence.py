"""Train on a long sequence: checkpointing, truncated backpropagation.

Backward needs the gates and states of every step, which take a lot of
memory for a long sequence. Gradient checkpointing saves the states of a few
steps and recomputes the others; the gradient is bit-identical. Truncated
backpropagation cuts the sequence into chunks: the state is handed from
chunk to chunk, the gradient is not.
"""

import time

import numpy as np

import rnnkit

T, N, H = 20_000, 4, 64
rng = np.random.default_rng(0)
net = rnnkit.LSTM(8, H, seed=0)
# forget gates of about 0.9, as in a trained network
net.views["bias_ih_l0"][H : 2 * H] = 2
x = rng.standard_normal((T, N, 8), np.float32)
# gradient of some loss with respect to every output
dy = rng.standard_normal((T, N, H), np.float32)


def megabytes(steps, checkpoint_steps=None):
    """The memory that forward saves for backward."""
    nbytes = rnnkit.workspace_nbytes(net.desc, steps, N, checkpoint_steps)
    return nbytes / 1e6


def report(name, memory, start, dw):
    """Print memory, time, and how close dw is to the whole sequence's."""
    seconds = time.perf_counter() - start
    cosine = dw @ whole / np.sqrt(dw @ dw) / np.sqrt(whole @ whole)
    equal = np.array_equal(dw, whole)
    same = "bit-identical" if equal else f"cosine {cosine:.4f}"
    print(f"{name:30} {memory:7.2f} MB {seconds:6.2f} s   {same}")


net.backward(net.forward(x[:10]).workspace, dy[:10])  # compiles
start = time.perf_counter()
y, hy, cy, workspace = net.forward(x)
outputs, whole = y.copy(), net.backward(workspace, dy).dw
report(f"all {T} steps at once", megabytes(T), start, whole)

# multiples of 1024 / N = 256: the one nearest to sqrt(T) needs least memory
for steps in (1024, 256):
    start = time.perf_counter()
    # saves the states of every `steps`-th step
    *_, workspace = net.forward(x, checkpoint_steps=steps)
    # recomputes each segment, last to first
    dw = net.backward(workspace, dy).dw
    name = f"a checkpoint every {steps} steps"
    report(name, megabytes(T, steps), start, dw)

for steps in (1000, 100, 10):
    hx = cx = workspace = None
    start, dw = time.perf_counter(), np.zeros_like(whole)
    for first in range(0, T, steps):
        chunk = slice(first, first + steps)
        y, hx, cx, workspace = net.forward(
            x[chunk], hx, cx, workspace=workspace
        )
        # the forward pass is exact
        assert np.array_equal(y, outputs[chunk])
        # adds to dw; a training loop would call the optimizer here
        net.backward(workspace, dy[chunk], dw=dw)
    report(f"truncated to {steps} steps", megabytes(steps), start, dw)
