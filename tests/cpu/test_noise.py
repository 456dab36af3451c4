"""What training draws: which number of Philox4x32-10 decides about what, and what does not change it. Dropout between
layers, and the noises of cells."""

from typing import NamedTuple

import numpy as np
import pytest
from combinations import nightly
from problems import Problem, dropout_masks
from refused import refusals

import rnnkit
from rnnkit.cells import Noise, RegularizedLSTM, cell, forward, tanh
from rnnkit_kernels.machine import thread_pool

WORD = 2**32 - 1
OF_DROPOUT = 255  # the stream of a layer's input, beside those of its cell's noises


def philox(counter, key):
    """Four words of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ k[0], second & WORD, first >> 32 ^ c[3] ^ k[1], first & WORD]
        k = [(own + step) & WORD for own, step in zip(k, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return c


# From kat_vectors of the authors' library, Random123.
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((WORD,) * 4, (WORD,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (*PI, "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_philox_meets_the_published_vectors(counter, key, expected):
    assert [f"{word:08x}" for word in philox(counter, key)] == expected.split()


def number(seed, stream, step, row, unit):
    """The number in [0, 1) that decides about a unit of a row in a step."""
    counter = unit // 64 * 16 + unit % 16, row, step, stream
    return philox(counter, (seed & WORD, seed >> 32))[unit % 64 // 16] / 2**32


def numbers(seed, stream, steps, rows, units):
    return np.array([[[number(seed, stream, t, n, u) for u in units] for n in rows] for t in steps])


# A row of 140 numbers is two groups of 64 and a rest, one of 5 is a part of one.
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("hidden_size", "bidirectional"), [(70, True), (5, False)])
@pytest.mark.parametrize(("seed", "rate"), [(0, 0.5), (7, 0.1), (2**40 + 3, 0.5), (2**64 - 1, 0.9)])
def test_dropout_masks_are_philox_numbers_of_the_seed(seed, rate, hidden_size, bidirectional, dtype):
    sizes = dict(hidden_size=hidden_size, bidirectional=bidirectional, num_layers=4, seq_len=3, batch_size=2)
    problem = Problem(mode="lstm", **sizes, dropout=rate, dtype=dtype)
    for layer, mask in enumerate(dropout_masks(problem, seed), 1):
        drawn = numbers(seed, layer * 256 + OF_DROPOUT, range(3), range(2), range(mask.shape[2]))
        np.testing.assert_array_equal(mask > 0, drawn >= rate, f"layer {layer}")


HOLD, PICK = Noise("hold", "share", True, True), Noise("pick", "share", choice=True)


@cell(gates="a", noises=[Noise("mask", "rate"), Noise("keep", "rate", per_step=True), HOLD, PICK])
class Noisy(NamedTuple):
    """One with noise of every kind."""

    rate: float = 0.25
    share: float = 0.4

    @forward("h")
    def step(self, a, h_prev, mask, keep, hold, pick):
        return mask * tanh(a) + keep * hold + pick * h_prev


def noisy(**options):
    options = {"num_layers": 2, "bidirectional": True, "dtype": "float64", "seed": 0} | options
    return rnnkit.Network(Noisy(), 3, 70, **options)


def drawn_by(workspace, name, number=0):
    """An array of the workspace by noise, (noises, ...)."""
    array = workspace.arrays[f"{name}_{number}"]
    return np.moveaxis(array.reshape(*array.shape[:-1], -1, 70), -2, 0)


@pytest.mark.parametrize("dtype", [nightly("float32"), "float64"])
def test_cell_noises_are_philox_numbers_of_the_seed(dtype):
    x, seed = np.ones((4, 3, 3), dtype), 2**33 + 5
    workspace = noisy(dtype=dtype).forward(x, seed=seed).workspace
    for layer in (0, 3):  # a pseudo-layer
        mask, pick = drawn_by(workspace, "noises", layer)
        keep, hold = drawn_by(workspace, "step_noises", layer)
        streams = [layer * 256 + number for number in range(4)]
        of_all, of_steps = ((WORD,), range(3), range(70)), (range(4), range(3), range(70))
        scale = np.dtype(dtype).type(1 / 0.75)
        np.testing.assert_array_equal(mask, np.where(numbers(seed, streams[0], *of_all)[0] < 0.25, 0, scale))
        np.testing.assert_array_equal(keep, np.where(numbers(seed, streams[1], *of_steps) < 0.25, 0, scale))
        rate = float(np.dtype(dtype).type(0.4))
        np.testing.assert_array_equal(hold, numbers(seed, streams[2], *of_steps) < round(rate * 2**32) / 2**32)
        np.testing.assert_array_equal(pick, numbers(seed, streams[3], *of_all)[0] < round(rate * 2**32) / 2**32)


def test_draws_depend_on_neither_batch_threads_nor_checkpoints(every_worker_comes, monkeypatch):
    """Nor do those of dropout, which is on, too."""
    net, rng = noisy(dropout=0.5, bidirectional=False), np.random.default_rng(0)
    x, dy = rng.normal(size=(6, 5, 3)), rng.normal(size=(6, 5, 70))
    whole = net.forward(x, seed=3)
    back, y = net.backward(whole.workspace, dy), whole.y.copy()
    np.testing.assert_array_equal(net.forward(x[:4], seed=3).y, y[:4])
    np.testing.assert_array_equal(net.forward(x[:, :2], seed=3).y, y[:, :2])
    part = net.forward(x[:, 2:], seed=3, first_row=2)  # as a rank has some rows
    np.testing.assert_array_equal(part.y, y[:, 2:])
    np.testing.assert_array_equal(net.backward(part.workspace, dy[:, 2:]).dx, back.dx[:, 2:])
    lengths = [3, 6, 0, 1, 5]
    padded = net.forward(x, seed=3, lengths=lengths).y
    for n, length in enumerate(lengths):
        np.testing.assert_array_equal(padded[:length, n], y[:length, n])
    for threads in (2, 3):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        again = net.forward(x, seed=3, checkpoint_steps=threads)
        for own, before in zip((again.y, *net.backward(again.workspace, dy)), (y, *back), strict=True):
            np.testing.assert_array_equal(own, before)
    assert not np.array_equal(net.forward(x, seed=4).y, y)


def test_inference_takes_the_expectation_of_noises():
    """infer, plans and forward of `desc.evaluating` have 1 for a factor, the rate for a choice; no seed is drawn."""
    net, x = noisy(bidirectional=False), np.random.default_rng(0).normal(size=(3, 2, 3))
    views, states = net.views, np.zeros((2, 2, 70))
    for t, y in enumerate(net.infer(x).y):
        below = x[t]
        for layer, h in enumerate(states):
            w, r, *biases = (views[f"{name}_l{layer}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            h[:] = below = np.tanh(below @ w.T + h @ r.T + sum(biases)) + 0.4 + 0.4 * h
        np.testing.assert_allclose(y, below, atol=1e-13)
    plan = net.prepare()
    np.testing.assert_array_equal(plan.infer(x).y, net.infer(x).y)
    np.testing.assert_array_equal(plan.step(x[0]).y, net.infer(x).y[0])
    evaluating = net.desc.evaluating
    found = rnnkit.forward(evaluating, net.weights, x)
    np.testing.assert_array_equal(found.y, net.infer(x).y)
    assert found.workspace.seed is None
    rnnkit.backward(evaluating, net.weights, found.workspace, np.ones_like(found.y))
    assert not np.array_equal(net.forward(x).y, found.y)


@pytest.mark.parametrize("first", ["forward", "infer"])
def test_training_and_inference_of_one_size_stay_apart(first):
    """Long enough for both to run the same kernel, compiled for what is drawn and for what is not."""
    net, x = noisy(bidirectional=False), np.random.default_rng(0).normal(size=(130, 16, 3))
    for call in ("forward", "infer") if first == "forward" else ("infer", "forward"):
        getattr(net, call)(x)
    by_row = np.concatenate([net.infer(x[:, n : n + 1]).y for n in range(2)], axis=1)
    np.testing.assert_array_equal(net.infer(x).y[:, :2], by_row)
    drawn = net.forward(x, seed=1).y
    np.testing.assert_array_equal(net.forward(x[:, :2], seed=1).y, drawn[:, :2])


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_rates_0_and_1_decide_every_element(rate):
    net = rnnkit.Network(Noisy(rate=rate, share=1 - rate), 3, 70, 2, dtype="float64", seed=0)
    workspace = net.forward(np.ones((2, 2, 3))).workspace
    (mask, pick), (keep, hold) = drawn_by(workspace, "noises"), drawn_by(workspace, "step_noises")
    assert (mask == 1 - rate).all() and (keep == 1 - rate).all()
    assert (pick == 1 - rate).all() and (hold == 1 - rate).all()


def test_zero_rates_draw_nothing():
    net = rnnkit.Network(RegularizedLSTM(), 3, 5, seed=0)
    assert net.forward(np.ones((2, 1, 3), np.float32)).workspace.seed is None
    assert not net.desc.draws


def drawn(first_row=0, zoneout=0.5):
    rnnkit.Network(RegularizedLSTM(zoneout=zoneout), 3, 5).forward(np.ones((1, 2, 3), np.float32), first_row=first_row)


REFUSED = [
    (lambda: drawn(-1), "forward: first_row | 0..2**32-2 | -1"),
    (lambda: drawn(2**32 - 1), f"forward: first_row | 0..2**32-2 | {2**32 - 1}"),
    (lambda: drawn(1.0), "TypeError forward: first_row | int | float"),
    (lambda: drawn(True), "TypeError forward: first_row | int | bool"),
    (lambda: drawn(zoneout=-0.1), "RNNDescriptor: mode, RegularizedLSTM's zoneout | [0, 1] | -0.1"),
    (lambda: drawn(zoneout=1.5), "RNNDescriptor: mode, RegularizedLSTM's zoneout | [0, 1] | 1.5"),
]


@refusals(anywhere=REFUSED)
def test_invalid_first_row_or_rate_is_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()
