"""The naive twin itself: against numbers worked out by hand, and against laws that PyTorch can not show."""

import math

import numpy as np
import pytest
import reference
from tolerances import assert_close


def logistic(a):
    return 1 / (1 + math.exp(-a))


def one_unit(mode, gates, **options):
    """One unit, one step: x = 0.5, hx = 0.25, cx = -0.5; gate k has W = k+1, R = -k/2, bW = 0.1*k, bR = 0.3."""
    k = np.arange(gates, dtype=float)
    blocks = {"weight_ih": k[:, None] + 1, "weight_hh": -k[:, None] / 2, "bias_ih": 0.1 * k, "bias_hh": 0 * k + 0.3}
    weights = {f"{name}_l0": block for name, block in blocks.items()}
    arrays = np.array([0.5, 0.25, -0.5]).reshape(3, 1, 1, 1)
    return reference.forward(weights, *arrays, mode=mode, hidden_size=1, **options)


def input_side(k):
    return (k + 1) * 0.5 + 0.1 * k


def recurrent_side(k, h=0.25):
    return -k / 2 * h + 0.3


def test_vanilla_by_hand():
    assert_close("y", one_unit("rnn_tanh", 1).y, [[[math.tanh(0.8)]]], "float64")
    assert_close("y", one_unit("rnn_relu", 1).y, [[[0.8]]], "float64")


@pytest.mark.parametrize(("clip", "bounds"), [(None, (-9, 9)), ((-0.2, 0.3), (-0.2, 0.3)), ((0.5, 0.6), (0.5, 0.6))])
def test_lstm_by_hand(clip, bounds):
    i, f, g, o = (input_side(k) + recurrent_side(k) for k in range(4))
    c = np.clip(logistic(f) * -0.5 + logistic(i) * math.tanh(g), *bounds)
    result = one_unit("lstm", 4, cell_clip=clip)
    assert_close("cy", result.cy, [[[c]]], "float64")
    assert_close("y", result.y, [[[logistic(o) * math.tanh(c)]]], "float64")


@pytest.mark.parametrize("reset_after", [True, False])
def test_gru_by_hand(reset_after):
    r, z = (logistic(input_side(k) + recurrent_side(k)) for k in range(2))
    n = math.tanh(input_side(2) + (r * recurrent_side(2) if reset_after else recurrent_side(2, r * 0.25)))
    assert_close("y", one_unit("gru", 3, reset_after=reset_after).y, [[[(1 - z) * n + z * 0.25]]], "float64")


def draws(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in shapes]


@pytest.mark.parametrize(("mode", "gates"), [("rnn_tanh", 1), ("lstm", 4), ("gru", 3)])
def test_skip_input_is_the_identity_for_every_gate(mode, gates):
    x, weight, bias = draws((4, 2, 3), (gates * 3, 3), gates * 3)
    named = {"weight_hh_l0": weight, "bias_hh_l0": bias}
    identity = {**named, "weight_ih_l0": np.tile(np.eye(3), (gates, 1))}
    skipped, multiplied = (reference.forward(w, x, mode=mode, hidden_size=3) for w in (named, identity))
    assert_close("y", skipped.y, multiplied.y, "float64")


def test_masks_multiply_what_passes_between_layers():
    x, *blocks = draws((4, 2, 3), *[(3, 3)] * 4)
    mask = np.random.default_rng(0).choice([0.0, 2.0], x.shape)
    names, options = ["weight_ih_l0", "weight_hh_l0"], dict(mode="rnn_tanh", hidden_size=3)
    both = dict(zip([*names, "weight_ih_l1", "weight_hh_l1"], blocks, strict=True))
    stacked = reference.forward(both, x, **options, num_layers=2, masks=[mask])
    below = reference.forward(dict(zip(names, blocks[:2], strict=True)), x, **options)
    above = reference.forward(dict(zip(names, blocks[2:], strict=True)), below.y * mask, **options)
    assert_close("y", stacked.y, above.y, "float64")
    assert_close("hidden", stacked.hidden[0], below.y, "float64")


def test_lengths_end_the_sequence_and_zero_passes_the_state():
    x, hx, *blocks = draws((4, 3, 3), (2, 3, 3), *[(3, 3)] * 4)
    kinds = ("weight_ih_l0", "weight_hh_l0", "weight_ih_l0_reverse", "weight_hh_l0_reverse")
    named, options = dict(zip(kinds, blocks, strict=True)), dict(mode="rnn_tanh", hidden_size=3, bidirectional=True)
    result = reference.forward(named, x, hx, **options, lengths=[2, 0, 4])
    alone = reference.forward(named, x[:2, :1], hx[:, :1], **options)
    assert_close("y", result.y[:2, :1], alone.y, "float64")
    assert_close("hy", result.hy[:, :1], alone.hy, "float64")
    assert_close("hy", result.hy[:, 1], hx[:, 1], "float64")
    assert not result.y[2:, 0].any() and not result.y[:, 1].any()


def test_kink_is_the_distance_to_the_nearest_corner():
    assert_close("kink", one_unit("rnn_relu", 1).kink, 0.8, "float64")
    raw = float(one_unit("lstm", 4).cy[0, 0, 0])
    assert_close("kink", one_unit("lstm", 4, cell_clip=(raw - 3, raw + 2)).kink, 2.0, "float64")
    assert one_unit("gru", 3).kink == math.inf
