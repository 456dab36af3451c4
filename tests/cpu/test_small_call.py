"""A call that is laid out for one size: what it is for, what it leaves out, and the weights' gradient of several such
calls of one step at once, as if each had added its own."""

from functools import partial

import numpy as np
import pytest
from combinations import nightly
from tolerances import assert_gradient_close, assert_same_bits

import rnnkit
from rnnkit.cells import PeepholeLSTM, VariationalGRU
from rnnkit.cpu import gathered, prepared, route

T, N, F, H = 5, 3, 4, 6


def test_small_calls_alone_are_prepared():
    desc = rnnkit.RNNDescriptor("gru", F, H, num_layers=2)
    assert route.is_prepared(desc, T, N) and not route.is_prepared(desc, 0, N) and not route.is_prepared(desc, T, 0)
    assert not route.is_prepared(desc, 10_000, 10)


@pytest.mark.parametrize("mode", ["gru", "lstm", VariationalGRU(0.3)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_call_is_prepared_up_to_a_size_of_its_workspace(monkeypatch, mode, bidirectional):
    desc = rnnkit.RNNDescriptor(mode, F, H, num_layers=2, bidirectional=bidirectional, dropout=0.5)
    for less in (0, 1):
        monkeypatch.setattr(route, "_PREPARED_BYTES", rnnkit.workspace_nbytes(desc, T, N) - less)
        assert route.is_prepared(desc, T, N) is (less == 0)


NETWORKS = [("gru", {"bidirectional": True}), ("lstm", {"num_layers": 2})]
NETWORKS += [nightly("gru", {"reset_after": False}), nightly("rnn_relu", {})]


@pytest.mark.parametrize(("mode", "options"), NETWORKS)
@pytest.mark.parametrize("steps", [1, 90])
def test_unwanted_gradients_are_left_out(monkeypatch, mode, options, steps):
    """All else has the same bits: also where several calls of a kernel go back through the steps."""
    monkeypatch.setattr(route, "_CALL_WORK", 1)
    desc, rng = rnnkit.RNNDescriptor(mode, F, H, **options), np.random.default_rng(0)
    w = rnnkit.init_weights(desc, seed=0)
    x, dy = (rng.standard_normal((steps, 24, size)).astype("f4") for size in (F, H * desc.num_directions))
    call = prepared.PreparedCall(desc, steps, 24, 1, route.route(desc, steps, 24))
    states = desc.num_pseudo_layers, 24, H
    call.forward(steps, w, x, rng.standard_normal(states).astype("f4"), 0)

    def backward(*wanted):
        dhx, dcx, dw = np.zeros(states, "f4"), np.zeros(states, "f4"), np.full(w.shape, np.nan, "f4")
        return call.backward(steps, w, x, dy, dhx, dcx if desc.has_cell_state else 0, dw, *wanted), dhx, dw

    dx, dhx, dw = backward(True, True)
    for wants_dx, wants_dhx in ((False, True), (True, False), (False, False)):
        found = backward(wants_dx, wants_dhx)
        assert_same_bits("dw", found[2], dw)
        assert found[0].size == 0 if not wants_dx else found[0].tobytes() == dx.tobytes()
        assert wants_dhx == (found[1].tobytes() == dhx.tobytes()), "the product was not left out"


def test_gathering_pays_for_large_weights_and_few_sequences():
    lstm = partial(rnnkit.RNNDescriptor, "lstm", 4)
    assert route.gathers(lstm(256), 1)
    for desc, batch_size in ((lstm(256), 8), (lstm(256), 0), (lstm(32), 1), (lstm(256, num_layers=2), 1)):
        assert not route.gathers(desc, batch_size)
    assert not route.gathers(rnnkit.RNNDescriptor(PeepholeLSTM(), 4, 256), 1), "its vectors' gradients"


GATHERED = [("gru", {}), ("lstm", {"proj_size": 5}), ("gru", {"reset_after": False, "dtype": "float64"})]


@pytest.mark.parametrize(("mode", "options"), [*GATHERED, nightly("rnn_relu", {})])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_gathered_gradient_equals_that_of_separate_calls(mode, options, batch_size):
    desc, rng = rnnkit.RNNDescriptor(mode, F, H, **options), np.random.default_rng(0)
    w, dtype = rnnkit.init_weights(desc, seed=0), desc.np_dtype
    call = prepared.PreparedCall(desc, 1, batch_size, 1, route.route(desc, 1, batch_size))
    several = gathered.Gathered(desc, batch_size, 1)
    shapes = {"x": F, "hx": desc.output_size, "cx": H, "dy": desc.output_size, "dhx": desc.output_size, "dcx": H}
    separate, together, count = np.zeros_like(w), np.zeros_like(w), 0
    for calls in (3, 2, 70):  # fewer than there is room for, fewer than the time before, and more
        for _ in range(calls):
            drawn = {name: rng.standard_normal((1, batch_size, size)).astype(dtype) for name, size in shapes.items()}
            given = drawn if desc.has_cell_state else drawn | {"cx": 0, "dcx": 0}
            call.forward(1, w, given["x"], given["hx"], given["cx"])
            found = []
            for options in ({"dw": separate, "dw_is_new": False}, {"dw": 0, "gathered": several}):
                dhx, dcx = (one if type(one) is int else one.copy() for one in (given["dhx"], given["dcx"]))
                dx = call.backward(1, w, given["x"], given["dy"], dhx, dcx, wants_dx=True, wants_dhx=True, **options)
                found.append((dx, dhx, dcx))
            for name, one, other in zip(("dx", "dhx", "dcx"), *found, strict=True):
                if type(one) is not int:
                    assert_same_bits(name, one, other)
            if several.is_full:
                several.add_to(together)
                count += 1
        several.add_to(together)
    assert count == 70 // (32 // batch_size)
    assert_gradient_close("dw", together, separate, dtype.name)
