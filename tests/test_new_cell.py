"""A cell in a user's file runs as the built-in ones do: its equations are all that it takes."""

from typing import NamedTuple

import numpy as np
import pytest
from gradcheck import assert_gradients

import rnnkit
from rnnkit.cells import Gate, cell, fma, forward, gradient, sigmoid, tanh


@cell(gates=[Gate("f"), Gate("n", multiplies="forgotten")])
class MinimalGatedUnit(NamedTuple):
    """Zhou et al., arXiv 1603.09420."""

    @forward("f forgotten")
    def gate(self, f, h_prev):
        f = sigmoid(f)
        return f, f * h_prev

    @gradient("df dh_prev")
    def through_gate(self, f, h_prev, df, dforgotten, dh_prev):
        return fma(dforgotten, h_prev, df) * (f * (1 - f)), fma(dforgotten, f, dh_prev)

    @forward("n h")
    def output(self, f, n, h_prev):
        n = tanh(n)
        return n, fma(f, n, (1 - f) * h_prev)

    @gradient("df dn dh_prev")
    def through_output(self, f, n, h_prev, dh):
        return dh * (n - h_prev), dh * f * (1 - n * n), dh * (1 - f)


def naive(desc, w, x, lengths):
    """y and hy of a bidirectional layer or stack, one number after the other as the paper has it."""
    views, hidden, hy = rnnkit.weight_views(desc, w), desc.hidden_size, []
    for layer in range(desc.num_layers):
        outputs = np.zeros((*x.shape[:2], desc.num_directions * hidden))
        for direction, suffix in enumerate(("", "_reverse")[: desc.num_directions]):
            kernel, recurrent, bias_ih, bias_hh = (
                views[f"{name}_l{layer}{suffix}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            h = np.zeros((x.shape[1], hidden))
            for n, length in enumerate(lengths):
                for t in range(length) if direction == 0 else reversed(range(length)):
                    a = kernel @ x[t, n] + bias_ih + bias_hh
                    f = 1 / (1 + np.exp(-a[:hidden] - recurrent[:hidden] @ h[n]))
                    candidate = np.tanh(a[hidden:] + recurrent[hidden:] @ (f * h[n]))
                    h[n] = (1 - f) * h[n] + f * candidate
                    outputs[t, n, direction * hidden : (direction + 1) * hidden] = h[n]
            hy.append(h)
        x = outputs
    return x, np.stack(hy)


LENGTHS = [4, 0, 6, 1, 3]


@pytest.fixture(params=[(5, 1), (17, 2)], ids=["h5", "h17-two-directions"])
def network(request):
    hidden, directions = request.param
    desc = rnnkit.RNNDescriptor(MinimalGatedUnit, 3, hidden, 2, directions == 2, dtype="float64")
    rng = np.random.default_rng(hidden)
    return desc, rnnkit.init_weights(desc, seed=1), rng.normal(size=(6, len(LENGTHS), 3))


def test_its_values_are_those_of_the_paper(network):
    desc, w, x = network
    y, hy = naive(desc, w, x, LENGTHS)
    found = rnnkit.forward(desc, w, x, lengths=LENGTHS)
    np.testing.assert_allclose(found.y, y, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(found.hy, hy, rtol=1e-13, atol=1e-14)


def test_its_gradients_are_those_of_its_values(network):
    desc, w, x = network
    rng = np.random.default_rng(3)
    hx = rng.normal(size=(desc.num_pseudo_layers, len(LENGTHS), desc.hidden_size))
    dy, dhy = rng.normal(size=(6, len(LENGTHS), desc.num_directions * desc.hidden_size)), rng.normal(size=hx.shape)

    def run(blocks):
        named = {name: array for name, array in blocks.items() if name not in ("x", "hx")}
        packed = rnnkit.pack_weights(desc, named)
        return packed, rnnkit.forward(desc, packed, blocks["x"], blocks["hx"], lengths=LENGTHS)

    def loss(blocks):
        _, found = run(blocks)
        return float((found.y * dy).sum() + (found.hy * dhy).sum())

    def gradients(blocks):
        packed, found = run(blocks)
        dx, dhx, _, dw = rnnkit.backward(desc, packed, found.workspace, dy, dhy)
        return {"x": dx, "hx": dhx} | rnnkit.weight_views(desc, dw)

    assert_gradients(loss, gradients, {"x": x, "hx": hx} | rnnkit.weight_views(desc, w), seed=5)


def test_a_call_a_plan_and_its_steps_have_the_same_bits(network):
    desc, w, x = network
    plan, expected = rnnkit.prepare(desc, w), rnnkit.forward(desc, w, x)
    assert np.array_equal(plan.infer(x).y, expected.y)
    if not desc.bidirectional:
        hx = None
        for row, y in zip(x, expected.y, strict=True):
            found, hx, _ = plan.step(row, hx)
            assert np.array_equal(found, y)
