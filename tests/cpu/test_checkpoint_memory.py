"""How much memory a training step with checkpoints takes, and what workspace_nbytes says of it."""

import gc
import itertools
import math

import numpy as np
import pytest
from combinations import nightly
from problems import CELLS, Problem
from traced import traced_bytes

import rnnkit

MB = 1 << 20


@pytest.mark.parametrize("cell", CELLS)
def test_checkpoint_memory_grows_with_sqrt_T(cell):
    """At most that of 2*sqrt(T) steps, where so many are whole chunks."""
    for num_layers, T in itertools.product((1, 3), (1000, 10_000, 100_000)):
        desc, root = Problem(**CELLS[cell], hidden_size=64, num_layers=num_layers, dtype="float32").desc, math.sqrt(T)
        whole = rnnkit.workspace_nbytes(desc, T, 32)
        assert rnnkit.workspace_nbytes(desc, T, 32, math.ceil(root)) <= whole / T * 2 * root


def test_workspace_nbytes_equals_a_count_by_hand():
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


# What a call works in beside the workspace, with 64 units a layer: 1024 rows of gates' gradients and of what the
# weights multiplied, packed weights, and 96 such columns for each of two threads.
SCRATCH = 4 * MB

T, N, K = 20_000, 3, 128  # steps, sequences, steps between checkpoints


def peak_of_a_training_step(net, x, lengths=None, **cotangent):
    """Most bytes that a step with checkpoints takes; `cotangent` says which output is that of which name."""

    def train():
        result = net.forward(x, lengths=lengths, checkpoint_steps=K)
        given = {name: getattr(result, output) for name, output in cotangent.items()}
        return result, net.backward(result.workspace, **given)

    gc.collect()
    return traced_bytes(train)[1]


def warmed_up(net, size):
    """A long input of the network, which has compiled its kernels and taken what it keeps."""
    x = np.zeros((T, N, size), np.float32)
    first = net.forward(x[:300])
    net.backward(first.workspace, dhy=first.hy)
    return x


MODES = [("lstm", True), ("gru", False), nightly("lstm", False), nightly("gru", True)]


@pytest.mark.parametrize(("mode", "ragged"), MODES)
def test_training_step_takes_little_beside_its_workspace(mode, ragged):
    """The workspace takes what workspace_nbytes says, and a training step little more, with lists of rows too."""
    net = rnnkit.LSTM(64, 64, seed=0) if mode == "lstm" else rnnkit.GRU(64, 64, num_layers=2, seed=0)
    x, lengths = warmed_up(net, 64), np.arange(N) * T // N if ragged else None
    kept, whole = rnnkit.workspace_nbytes(net.desc, T, N, K), rnnkit.workspace_nbytes(net.desc, T, N)
    assert kept < whole / 20
    results = []
    stays, _ = traced_bytes(lambda: results.append(net.forward(x, lengths=lengths, checkpoint_steps=K)))
    assert kept < stays - x.nbytes < kept + 2 * MB  # with y; and packed weights
    results.clear()
    most = peak_of_a_training_step(net, x, lengths, dy="y")
    assert most - 2 * x.nbytes < kept + net.desc.num_layers * SCRATCH  # with y and dx


def test_bidirectional_step_takes_little_beside_its_workspace():
    """Beside the arrays there is the gradient of a layer's input, whole and a segment of it."""
    net = rnnkit.LSTM(8, 32, num_layers=2, bidirectional=True, seed=0)
    x, kept, outputs = warmed_up(net, 8), rnnkit.workspace_nbytes(net.desc, T, N, K), T * N * 64 * 4
    assert peak_of_a_training_step(net, x, dhy="hy") < kept + 2 * outputs + x.nbytes + 2 * SCRATCH
    assert kept < outputs + 3 * MB < rnnkit.workspace_nbytes(net.desc, T, N) / 5
