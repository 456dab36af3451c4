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
from tolerances import GRADIENTS, OUTPUTS, assert_same_results

import rnnkit
from rnnkit.cells import Gate, cell, fma, sigmoid, tanh
from rnnkit.cells import forward as stage
from rnnkit_kernels.machine import thread_pool


@pytest.mark.parametrize(("first", "count", "means"), [(0, 12, False), (0, 4, True), weekly(40, 100, False)])
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


def of(gates, function):
    class Mine(NamedTuple):
        step = stage("h")(function)

    return cell(gates=gates)(Mine)


def test_cell_that_reads_h_in_a_condition_carries_it():
    kind = of("a b", lambda self, a, b, h_prev: a * b if h_prev > 0 else a + b)
    rnnkit.check_cell(kind)
    assert kind.declaration.carries_hidden


def slotted(self, n, u, q, h_prev):
    v = (n - h_prev if u > 0 else n + 0.5 * h_prev) / (1.5 + n * n)
    return tanh(sigmoid(v) * v + q)


@pytest.mark.parametrize("function", [lambda self, n, u, q, h_prev: tanh(n + q) if u > 0 else h_prev, slotted])
def test_gradient_of_a_gate_in_a_condition_alone_is_zero(function):
    """W x of the gate is read there, beside its product with R; in one of the cells its slot is used again."""
    kind = of([Gate("n"), Gate("u", apart="q")], function)
    (row,) = (row for row in rnnkit.check_cell(kind) if row.name == "u")
    assert row.gradient == row.difference == 0 and row.trials > 10


@pytest.mark.parametrize(("seed", "means"), [(0, False), nightly(1, True), weekly(2, False), weekly(3, True)])
def test_networks_of_random_cells_equal_a_loop(seed, means, every_worker_comes, monkeypatch):
    """With the same bits at any number of threads, in inference and with checkpoints."""
    net, x, hx, states, (dy, dhy, dstates), options, rng = problem(seed, means)
    given, runs = (x, hx, as_given(states)), []
    for threads in (1, 2, 3):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        found = net.forward(*given, **options, checkpoint_steps=2 if threads == 3 else None)
        back = net.backward(found.workspace, dy, dhy, as_given(dstates))
        for inferred in (net.infer(*given, **options), net.prepare().infer(*given, **options)):
            assert_same_results(inferred, found, OUTPUTS)
        sides = back.inputs if options["inputs"] else {}
        runs.append((found, back))
        assert_same_results(found, runs[0][0], OUTPUTS)
        if threads < 3:
            assert_same_results(back, runs[0][1], GRADIENTS)
            assert all(np.array_equal(one, runs[0][1].inputs[name]) for name, one in sides.items())
    y, hy, final = forward(net, *given[:2], states, **options)
    for own, wanted in zip([found.y, found.hy, *arrays_of(found.cy)], [y, hy, *final], strict=True):
        np.testing.assert_allclose(own, wanted, rtol=0, atol=1e-12)
    gradients = {"x": back.dx, "hx": back.dhx} | rnnkit.weight_views(net.desc, back.dw) | sides
    gradients |= {f"state{number}": one for number, one in enumerate(arrays_of(back.dcx))}
    slopes = differences(net, x, hx, states, (dy, dhy, dstates), rng, **options)
    for name, (direction, slope, curved) in slopes.items():
        own = (gradients[name] * direction).sum()
        assert abs(own - slope) <= 1e-7 * (1 + abs(slope)) + 3 * curved, (name, own, slope)


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
    net, full, size = (
        rnnkit.Network(Headed, 5, hidden_size, 2, seed=1),
        rnnkit.LSTM(5, hidden_size, 2),
        hidden_size // 4,
    )
    assert net.views["weight_hh_l0"].shape == (4 * hidden_size, size)

    def blocks(name, r, whole):
        """Of an R with heads, and of a whole one: each head's, by gate."""
        return r[name].reshape(4, 4, size, size).swapaxes(0, 1), whole[name].reshape(4, 4, size, 4, size)

    full.weights[:] = 0
    for name, view in net.views.items():
        if "weight_hh" in name:
            own, whole = blocks(name, net.views, full.views)
            whole[:, range(4), :, range(4)] = own
        else:
            full.views[name] = view
    rng, runs = np.random.default_rng(0), []
    x, dy = (rng.standard_normal((7, batch_size, size), np.float32) for size in (5, hidden_size))
    for threads in (1, 2):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        found = net.forward(x)
        runs.append((found, net.backward(found.workspace, dy)))
        for inferred in (net.infer(x), net.prepare().infer(x)):
            assert_same_results(inferred, found, OUTPUTS)
    (found, back), (again, back_again) = runs
    assert_same_results(again, found, OUTPUTS)
    assert_same_results(back_again, back, GRADIENTS)
    expected = full.forward(x)
    expected_back = full.backward(expected.workspace, dy)
    for one, other in [*zip(found[:3], expected[:3], strict=True), *zip(back[:3], expected_back[:3], strict=True)]:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    views = (rnnkit.weight_views(one.desc, d.dw) for one, d in ((net, back), (full, expected_back)))
    own, whole = blocks("weight_hh_l1", *views)
    np.testing.assert_allclose(own, whole[:, range(4), :, range(4)], rtol=1e-4, atol=1e-4)


def test_units_that_heads_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=says("RNNDescriptor: hidden_size", "4 heads", "Headed", 6)):
        rnnkit.Network(Headed, 3, 6)
