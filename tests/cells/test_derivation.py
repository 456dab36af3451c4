"""Gradients that are derived from forward equations: random cells, interpreted and compiled, against differences; those
that are shipped against what a person writes; what is kept; what is refused."""

from typing import NamedTuple

import numpy as np
import pytest
from cell_reference import differences, forward
from combinations import nightly, weekly
from messages import says
from random_cells import check, right_cell_of
from several_states import arrays_of, as_given

import rnnkit
from rnnkit.cells import FastGRNN, Gate, cell, fma, sigmoid, tanh
from rnnkit.cells import forward as stage
from rnnkit_kernels.machine import thread_pool


@pytest.mark.parametrize(
    ("first", "count", "means"),
    [(0, 12, False), (0, 4, True), nightly(12, 28, False), nightly(4, 8, True), weekly(40, 100, False)],
)
def test_gradients_of_random_cells_are_right(first, count, means):
    for seed in range(first, first + count):
        check(seed, means=means)


def problem(seed, means):
    """A network of a random cell, and what it is called with."""
    rng = np.random.default_rng(seed)
    layers, bidirectional = int(rng.integers(1, 4)), bool(rng.integers(2))
    seq_len, batch_size, input_size, hidden_size = (int(rng.integers(1, stop)) for stop in (6, 4, 4, 20))
    hidden_size = int(rng.integers(20, 50)) if means else hidden_size  # more than one panel
    kind = right_cell_of(seed, smooth=True, most_gates=5, means=means)
    hidden_size *= kind.declaration.heads
    bias = rng.choice(["both", "input", "recurrent", "none"])
    if bias == "recurrent" and not kind.declaration.recurrent_gates:
        bias = "none"
    sizes, options = (input_size, hidden_size, layers, bidirectional), dict(bias=str(bias), dtype="float64", seed=seed)
    net = rnnkit.Network(kind(flag=bool(rng.integers(2))), *sizes, **options)
    lengths = rng.integers(0, seq_len + 1, batch_size) if rng.integers(2) else None
    resets = rng.integers(0, 4, (seq_len, batch_size)) == 0 if rng.integers(2) else None
    pseudo_layers = net.desc.num_pseudo_layers
    x = rng.normal(size=(seq_len, batch_size, input_size))
    hx = rng.normal(size=(pseudo_layers, batch_size, hidden_size))
    states = [rng.normal(size=hx.shape) for _ in net.desc.states]
    dy = rng.normal(size=(seq_len, batch_size, net.desc.num_directions * hidden_size))
    cotangents = dy, rng.normal(size=hx.shape), [rng.normal(size=hx.shape) for _ in states]
    shapes = (seq_len, batch_size, hidden_size), (seq_len, batch_size, 1), (batch_size, hidden_size)
    names = [one.name for one in kind.declaration.inputs]
    inputs = {name: rng.normal(size=shapes[rng.integers(3)]) for name in names} or None
    return net, x, hx, states, cotangents, {"lengths": lengths, "resets": resets, "inputs": inputs}, rng


@cell(gates="a b")
class Switch(NamedTuple):
    """One that reads h in a condition alone."""

    step = stage("h")(lambda self, a, b, h_prev: a * b if h_prev > 0 else a + b)


def test_cell_that_reads_h_in_a_condition_carries_it():
    rnnkit.check_cell(Switch)
    assert Switch.declaration.carries_hidden


@cell(gates=[Gate("n"), Gate("u", apart="q")])
class Hard(NamedTuple):
    """W x of a gate is read in a condition alone, beside its product with R."""

    step = stage("h")(lambda self, n, u, q, h_prev: tanh(n + q) if u > 0 else h_prev)


@cell(gates=[Gate("n"), Gate("u", apart="q")])
class Slotted(NamedTuple):
    """The same, and its slot is used again."""

    @stage("h")
    def step(self, n, u, q, h_prev):
        v = (n - h_prev if u > 0 else n + 0.5 * h_prev) / (1.5 + n * n)
        return tanh(sigmoid(v) * v + q)


@pytest.mark.parametrize("kind", [Hard, Slotted])
def test_gradient_of_a_gate_in_a_condition_alone_is_zero(kind):
    (row,) = (row for row in rnnkit.check_cell(kind) if row.name == "u")
    assert row.gradient == row.difference == 0 and row.trials > 10


@pytest.mark.parametrize(("seed", "means"), [(0, False), nightly(1, True), weekly(2, False), weekly(3, True)])
def test_networks_of_random_cells_equal_a_loop(seed, means, every_worker_comes, monkeypatch):
    net, x, hx, states, cotangents, options, rng = problem(seed, means)
    found = net.forward(x, hx, as_given(states), **options)
    y, hy, final = forward(net, x, hx, states, **options)
    for own, wanted in zip([found.y, found.hy, *arrays_of(found.cy)], [y, hy, *final], strict=True):
        np.testing.assert_allclose(own, wanted, rtol=0, atol=1e-12)
    dy, dhy, dstates = cotangents
    back = net.backward(found.workspace, dy, dhy, as_given(dstates))
    assert_same_bits(net, x, hx, as_given(states), options, found, back, (dy, dhy, as_given(dstates)), monkeypatch)
    gradients = {"x": back.dx, "hx": back.dhx} | rnnkit.weight_views(net.desc, back.dw)
    gradients |= back.inputs if options["inputs"] else {}
    gradients |= {f"state{number}": one for number, one in enumerate(arrays_of(back.dcx))}
    for name, (direction, slope, curved) in differences(net, x, hx, states, cotangents, rng, **options).items():
        own = (gradients[name] * direction).sum()
        assert abs(own - slope) <= 1e-7 * (1 + abs(slope)) + 3 * curved, (name, own, slope)


def assert_same_bits(net, x, hx, cx, options, found, back, cotangents, monkeypatch):
    """At any number of threads, in inference, with checkpoints and step by step."""

    def same(one, other):
        return all(np.array_equal(a, b) for a, b in zip(flat(one), flat(other), strict=True))

    for threads in (1, 2, 3):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        again = net.forward(x, hx, cx, **options, checkpoint_steps=2 if threads == 3 else None)
        assert same(again[:3], found[:3])
        assert threads == 3 or same(net.backward(again.workspace, *cotangents), back)
        assert same(net.infer(x, hx, cx, **options), found[:3])
    plan = net.prepare()
    assert same(plan.infer(x, hx, cx, **options), found[:3])
    if net.desc.bidirectional or options["lengths"] is not None:
        return
    states = hx, *([] if cx is None else [cx])
    for t in range(len(x)):
        own = {name: one[t] if one.ndim == 3 else one for name, one in (options["inputs"] or {}).items()} or None
        resets = None if options["resets"] is None else options["resets"][t]
        step = plan.step(x[t], *states, inputs=own, resets=resets)
        assert np.array_equal(step.y, found.y[t])
        states = step[1:]


def flat(results):
    for one in results:
        if isinstance(one, tuple):
            yield from one
        elif isinstance(one, dict):
            yield from one.values()
        elif one is not None:
            yield one


@cell(gates=[Gate(name, heads=4) for name in "ifgo"], states="c")
class Headed(NamedTuple):
    """An LSTM whose R is block-diagonal."""

    @stage("c h")
    def step(self, i, f, g, o, c_prev):
        c = fma(sigmoid(f), c_prev, sigmoid(i) * tanh(g))
        return c, sigmoid(o) * tanh(c)


@pytest.mark.parametrize("hidden_size", [4, 20, 32, 64])
@pytest.mark.parametrize("batch_size", [1, 3, 40])
def test_heads_equal_an_lstm_with_zeros_between_them(hidden_size, batch_size, monkeypatch):
    net = rnnkit.Network(Headed, 5, hidden_size, 2, seed=1)
    assert net.views["weight_hh_l0"].shape == (4 * hidden_size, hidden_size // 4)
    full = rnnkit.LSTM(5, hidden_size, 2)
    for name, view in net.views.items():
        if "weight_hh" not in name:
            full.views[name] = view
            continue
        blocks = view.reshape(4, 4, hidden_size // 4, -1)  # gate, head
        whole = np.zeros((4, 4, hidden_size // 4, 4, hidden_size // 4), np.float32)
        for head in range(4):
            whole[:, head, :, head] = blocks[:, head]
        full.views[name] = whole.reshape(4 * hidden_size, hidden_size)
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((7, batch_size, size), np.float32) for size in (5, hidden_size))
    results = []
    for threads in (1, 2):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        found = net.forward(x)
        results.append((*found[:3], *net.backward(found.workspace, dy), net.infer(x).y, net.prepare().infer(x).y))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)
    y, hy, cy, dx, dhx, dcx, dw, *inferred = results[0]
    whole = full.forward(x)
    back = full.backward(whole.workspace, dy)
    for one, other in [(y, whole.y), (hy, whole.hy), (cy, whole.cy), (dx, back.dx), (dhx, back.dhx), (dcx, back.dcx)]:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    for one in inferred:
        assert np.array_equal(one, y)
    of_r = rnnkit.weight_views(full.desc, back.dw)["weight_hh_l1"].reshape(4, 4, hidden_size // 4, 4, -1)
    own = rnnkit.weight_views(net.desc, dw)["weight_hh_l1"].reshape(4, 4, hidden_size // 4, -1)
    for head in range(4):
        np.testing.assert_allclose(own[:, head], of_r[:, head, :, head], rtol=1e-4, atol=1e-4)


def test_units_that_heads_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=says("RNNDescriptor: hidden_size", "4 heads", "Headed", 6)):
        rnnkit.Network(Headed, 3, 6)


@pytest.mark.nightly
@pytest.mark.parametrize("hidden_size", [5, 100])
@pytest.mark.parametrize("threads", [1, 2])
def test_gradient_of_a_scalar_is_summed_over_units(hidden_size, threads, monkeypatch):
    """100 units: those of a scalar have blocks of columns of their own."""
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: threads)
    net = rnnkit.Network(FastGRNN, 3, hidden_size, 2, dtype="float64", seed=0)
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(30, 20, 3)), rng.normal(size=(30, 20, hidden_size))
    dw = rnnkit.weight_views(net.desc, net.backward(net.forward(x).workspace, dy).dw)
    for name in ("zeta_l0", "nu_l1"):
        losses = []
        for step in (1e-5, -2e-5):
            net.views[name][0] += step
            losses.append((net.infer(x).y * dy).sum())
        net.views[name][0] += 1e-5
        assert dw[name][0] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-6)
