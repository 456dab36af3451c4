"""How much memory a training step with checkpoints takes, and what workspace_nbytes says of it."""

import gc
import math
import tracemalloc

import numpy as np
import pytest
from combinations import nightly
from problems import CELLS, Problem

import rnnkit

MB = 1 << 20


def least_steps(T):
    return math.ceil(math.sqrt(T))


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("T", [1000, 10_000, 100_000])
@pytest.mark.parametrize("cell", CELLS)
def test_the_memory_grows_with_the_root(cell, T, num_layers):
    """At most that of 2*sqrt(T) steps, where so many are whole chunks."""
    desc = Problem(**CELLS[cell], hidden_size=64, num_layers=num_layers, dtype="float32").desc
    whole = rnnkit.workspace_nbytes(desc, T, 32)
    assert rnnkit.workspace_nbytes(desc, T, 32, least_steps(T)) <= whole / T * 2 * math.sqrt(T)


def test_the_memory_by_hand():
    """float32, N=2: chunks of 512 steps. Two starts, with cells; one segment, with the states before it."""
    desc = rnnkit.RNNDescriptor("lstm", 3, 5)
    numbers = 2 * 2 * (5 + 5) + 512 * 2 * 4 * 5 + 513 * 2 * (5 + 5)
    assert rnnkit.workspace_nbytes(desc, 1024, 2, 1) == 4 * numbers
    assert rnnkit.workspace_nbytes(desc, 1024, 2, checkpoint_steps=512) == 4 * numbers
    # Of two directions all starts, a single pseudo-layer's segment with a mask, and the lower layer's outputs.
    desc = rnnkit.RNNDescriptor("gru", 3, 5, num_layers=2, bidirectional=True, dropout=0.5)
    slots = len(desc.cell.declaration.slots)
    numbers = 2 * 4 * 2 * 5 + 1026 * 2 * 10 + 512 * 2 * (slots * 5 + 10) + 514 * 2 * 10
    assert rnnkit.workspace_nbytes(desc, 1024, 2, 1) == 4 * numbers + 512 * 2 * 10


def traced(call):
    """(bytes that stay, most bytes in between) of a call, whose result is kept until then."""
    gc.collect()
    tracemalloc.start()
    try:
        result = call()
        gc.collect()
        stays, _ = tracemalloc.get_traced_memory()
        del result
        return stays, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# What a call works in beside the workspace, with 64 units a layer: 1024 rows of gates' gradients and of what the
# weights multiplied, packed weights, and 96 such columns for each of two threads.
SCRATCH = 4 * MB


@pytest.mark.parametrize(
    ("mode", "ragged"), [("lstm", True), ("gru", False), nightly("lstm", False), nightly("gru", True)]
)
def test_a_long_sequence_takes_little_beside_its_arrays(mode, ragged):
    """The workspace takes what workspace_nbytes says, and a training step little more, with lists of rows too."""
    T, N, K = 20_000, 3, 128
    net = rnnkit.LSTM(64, 64, seed=0) if mode == "lstm" else rnnkit.GRU(64, 64, num_layers=2, seed=0)
    x = np.zeros((T, N, 64), np.float32)
    lengths = np.arange(N) * T // N if ragged else None
    first = net.forward(x[:300])
    net.backward(first.workspace, dhy=first.hy)
    kept, whole = rnnkit.workspace_nbytes(net.desc, T, N, K), rnnkit.workspace_nbytes(net.desc, T, N)
    assert kept < whole / 20
    stays, _ = traced(lambda: net.forward(x, lengths=lengths, checkpoint_steps=K))
    assert kept < stays - x.nbytes < kept + 2 * MB  # with y; and packed weights

    def train():
        result = net.forward(x, lengths=lengths, checkpoint_steps=K)
        return result, net.backward(result.workspace, dy=result.y)

    _, most = traced(train)
    assert most - 2 * x.nbytes < kept + net.desc.num_layers * SCRATCH  # with y and dx


def test_a_long_sequence_of_two_directions():
    """Beside the arrays there is the gradient of a layer's input, whole and a segment of it."""
    net, (T, N, K) = rnnkit.LSTM(8, 32, num_layers=2, bidirectional=True, seed=0), (20_000, 3, 128)
    x = np.zeros((T, N, 8), np.float32)
    first = net.forward(x[:300])
    net.backward(first.workspace, dhy=first.hy)
    kept, outputs = rnnkit.workspace_nbytes(net.desc, T, N, K), T * N * 64 * 4

    def train():
        result = net.forward(x, checkpoint_steps=K)
        return result, net.backward(result.workspace, dhy=result.hy)

    _, most = traced(train)
    assert most < kept + 2 * outputs + x.nbytes + 2 * SCRATCH
    assert kept < outputs + 3 * MB < rnnkit.workspace_nbytes(net.desc, T, N) / 5
