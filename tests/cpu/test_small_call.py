"""A call that is laid out for one size: what it is for, and what it leaves out."""

import numpy as np
import pytest
from combinations import nightly
from tolerances import assert_same_bits

import rnnkit
from rnnkit.cpu import prepared, route

T, N, F, H = 5, 3, 4, 6


def test_small_calls_alone_are_prepared():
    desc = rnnkit.RNNDescriptor("gru", F, H, num_layers=2)
    assert route.is_prepared(desc, T, N) and not route.is_prepared(desc, 0, N) and not route.is_prepared(desc, T, 0)
    assert not route.is_prepared(desc, 10_000, 10)


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
