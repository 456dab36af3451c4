"""Initial states that belong to the network: results are those of the same states given, and dw has their gradients."""

from typing import NamedTuple

import numpy as np
import pytest
from combinations import nightly, pairs
from gradcheck import assert_gradients
from messages import raises
from several_states import arrays_of, as_given, each_of
from tolerances import OUTPUTS, assert_close, assert_same_bits, assert_same_results

import rnnkit
from rnnkit import cells
from rnnkit.cells import cell, forward

T, N, H = 7, 4, 5
CELLS = {
    "tanh": dict(mode="rnn_tanh"),
    "gru": dict(mode="gru"),
    "lstm": dict(mode="lstm"),
    "projection": dict(mode="lstm", proj_size=3),
    "vectors": dict(mode=cells.PeepholeLSTM),
    "three states": dict(mode=cells.SLSTM),
}
MARKS = np.random.default_rng(1).random((T, N)) < 0.4
MARKS[0, 1] = True
OPTIONS = {
    "nothing": {},
    "lengths": {"lengths": [7, 0, 3, 5]},
    "mask": {"mask": ~MARKS},
    "resets": {"resets": MARKS},
    "resets and lengths": {"resets": MARKS, "lengths": [7, 0, 3, 5]},
    "resets, checkpoints": {"resets": MARKS, "checkpoint_steps": 2},
}


class Learned:
    """A network with states of its own, and one without, whose calls are given them."""

    def __init__(self, kind, bidirectional=False, num_layers=2):
        fields = CELLS[kind] | dict(input_size=3, hidden_size=H, num_layers=num_layers, bidirectional=bidirectional)
        self.plain = rnnkit.RNNDescriptor(**fields, dtype="float64")
        self.desc = rnnkit.RNNDescriptor(**fields, dtype="float64", learned_initial_state=True)
        self.rng, self.first = np.random.default_rng(0), rnnkit.num_weights(self.plain)
        self.w = rnnkit.init_weights(self.desc, seed=0)
        self.w[self.first :] = self.rng.normal(size=self.w.size - self.first)
        self.shared = self.w[: self.first].copy()
        self.x = self.rng.normal(size=(T, N, 3))
        blocks = rnnkit.weight_views(self.desc, self.w)
        suffixes = [f"_l{layer}{end}" for layer in range(num_layers) for end in ("", "_reverse")[: 1 + bidirectional]]
        states = [np.stack([blocks[f"{name}0{end}"] for end in suffixes]) for name in ("h", *self.desc.states)]
        self.hx, *others = (np.repeat(one[:, None], N, 1) for one in states)
        self.cx = as_given(others)

    def drawn(self, like):
        return each_of(lambda one: self.rng.normal(size=one.shape), like)


@pytest.mark.parametrize(("kind", "options", "bidirectional"), pairs(CELLS, OPTIONS, [False, True]))
def test_results_are_those_of_the_states_given(kind, options, bidirectional):
    own, options = Learned(kind, bidirectional), OPTIONS[options]
    anew = {"initial": "hx"} if "resets" in options else {}
    found = rnnkit.forward(own.desc, own.w, own.x, **options)
    expected = rnnkit.forward(own.plain, own.shared, own.x, own.hx, own.cx, **options, **anew)
    assert_same_results(found, expected, OUTPUTS)
    cotangents = own.drawn(found.y), own.drawn(found.hy), own.drawn(found.cy)
    dw = np.where(np.arange(own.w.size) < own.first, 0.0, 1.0)  # what is found is added to it
    gradients = rnnkit.backward(own.desc, own.w, found.workspace, *cotangents, dw=dw)
    wanted = rnnkit.backward(own.plain, own.shared, expected.workspace, *cotangents)
    assert_same_bits("dx", gradients.dx, wanted.dx)
    assert_same_bits("dw", gradients.dw[: own.first], wanted.dw)
    others = np.concatenate([one.sum(1) for one in arrays_of(wanted.dcx)], 1).ravel() if own.desc.states else []
    of_states = np.concatenate([wanted.dhx.sum(1).ravel(), others])
    assert_close("dw of the states", gradients.dw[own.first :] - 1, of_states, "float64")
    assert gradients.dhx.shape == own.hx.shape
    inference = {name: value for name, value in options.items() if name != "checkpoint_steps"}
    plan = rnnkit.prepare(own.desc, own.w)
    for result in (rnnkit.infer(own.desc, own.w, own.x, **inference), plan.infer(own.x, **inference)):
        assert_same_results(result, found, OUTPUTS)


@pytest.mark.parametrize("resets", [None, MARKS], ids=["whole", "resets"])
@pytest.mark.parametrize("kind", ["lstm", nightly("three states")])
def test_given_states_are_read_and_resets_are_to_the_own_ones(kind, resets):
    """By central differences: dhx is that of what is given, dw that of resets."""
    own = Learned(kind, bidirectional=True)
    hx, dy = own.drawn(own.hx), own.rng.normal(size=(T, N, 2 * H))

    def run(blocks):
        return rnnkit.forward(own.desc, blocks["w"], own.x, blocks["hx"], resets=resets)

    def gradients(blocks):
        found = rnnkit.backward(own.desc, blocks["w"], run(blocks).workspace, dy)
        return {"w": found.dw, "hx": found.dhx}

    blocks = {"w": own.w, "hx": hx}
    assert_gradients(lambda given: float((run(given).y * dy).sum()), gradients, blocks, seed=2)
    blocks_of_h = rnnkit.weight_views(own.desc, gradients(blocks)["w"])
    assert blocks_of_h["h0_l0"].any() == (resets is not None)


@pytest.mark.parametrize("kind", CELLS)
def test_steps_and_streams_start_from_them(kind):
    own = Learned(kind)
    plan, hx, cx = rnnkit.prepare(own.desc, own.w), None, None
    expected = plan.infer(own.x, resets=MARKS)
    stream, some = plan.stream(N), plan.stream(N + 1)
    for t in range(T):
        y, hx, cx = plan.step(own.x[t], hx, cx, resets=MARKS[t])
        assert_same_bits("y", y, expected.y[t])
        assert_same_bits("y", stream.step(own.x[t], resets=MARKS[t]), expected.y[t])
        assert_same_bits("y", some.step(own.x[t], rows=[4, 2, 1, 0], resets=MARKS[t]), expected.y[t])
    assert_same_bits("hx", stream.state["hx"], expected.hy)
    some.reset([4, 1])
    assert_same_bits("hx", some.state["hx"][:, [3, 1, 4]], own.hx[:, :3])
    stream.reset()
    assert_same_bits("y", stream.run(own.x, resets=MARKS), expected.y)
    y, *_ = plan.step(own.x[0], mask=[0, 1, 1, 0])
    assert_same_bits("y", y[[0, 3]], own.hx[-1, [0, 3]])


def test_blocks_stand_behind_all_others_and_start_as_zeros():
    desc = rnnkit.RNNDescriptor(cells.PeepholeLSTM, 3, 4, bidirectional=True, learned_initial_state=True)
    blocks = rnnkit.weight_layout(desc)
    assert [(one.name, one.shape) for one in blocks[-4:]] == [
        ("h0_l0", (4,)), ("h0_l0_reverse", (4,)), ("c0_l0", (4,)), ("c0_l0_reverse", (4,))
    ]  # fmt: skip
    plain = rnnkit.RNNDescriptor(cells.PeepholeLSTM, 3, 4, bidirectional=True)
    assert rnnkit.num_weights(desc) == rnnkit.num_weights(plain) + 16
    w = rnnkit.init_weights(desc, 0)
    assert np.array_equal(w[:-16], rnnkit.init_weights(plain, 0)) and not w[-16:].any()
    assert repr(desc).endswith("bidirectional=True, learned_initial_state=True)") and desc != plain


def test_files_have_them(tmp_path):
    net = rnnkit.LSTM(3, H, seed=0, learned_initial_state=True)
    net.views["c0_l0"][:] = 2
    net.save(tmp_path / "net")
    assert rnnkit.load(tmp_path / "net") == net


def test_wrong_uses_are_refused():
    with raises(TypeError, "RNNDescriptor: learned_initial_state | bool | int"):
        rnnkit.RNNDescriptor("lstm", 3, 4, learned_initial_state=1)

    @cell(gates="a", vectors="h0")
    class Taken(NamedTuple):
        @forward("h")
        def step(self, a, h0):
            return a + h0

    assert rnnkit.RNNDescriptor(Taken, 3, 4)
    with raises(ValueError, "RNNDescriptor: learned_initial_state | False | Taken | vector h0"):
        rnnkit.RNNDescriptor(Taken, 3, 4, learned_initial_state=True)
