"""The number of steps is data of a call: what one call has prepared serves calls of other lengths, to the same bits."""

import numpy as np
import pytest
from combinations import pairs
from problems import Problem
from tolerances import assert_same_bits

import rnnkit
from rnnkit.call import memory, steps
from rnnkit.call.pool import Shelf
from rnnkit.cells import LayerNormLSTM, VariationalGRU
from rnnkit.cpu import engine, route, rows

NETWORKS = [
    dict(mode="lstm"), dict(mode="gru", bidirectional=True), dict(mode="rnn_tanh", num_layers=3),
    dict(mode="lstm", bidirectional=True, num_layers=2, dropout=0.4), dict(mode="lstm", proj_size=3),
    dict(mode=LayerNormLSTM()), dict(mode=VariationalGRU(0.3), bidirectional=True),
]  # fmt: skip
KINDS = ["full", "lengths", "resets"]


def call_of(desc, w, seq_len, kind, seed):
    """The arguments of a call of this kind."""
    rng = np.random.default_rng([seed, seq_len])
    x = rng.standard_normal((seq_len, 4, desc.input_size), np.float32)
    hx = rng.standard_normal((desc.num_pseudo_layers, 4, desc.output_size), np.float32)
    given = {"lengths": rng.integers(0, seq_len + 1, 4)} if kind == "lengths" else {}
    if kind == "resets":
        given = {"resets": rng.random((seq_len, 4)) < 0.3, "initial": "hx"}
    return (desc, w, x, hx), given | {"seed": seed}


def results_of(desc, w, arguments, given, **options):
    forward = rnnkit.forward(*arguments, **given, **options)
    dy = np.cos(np.arange(forward.y.size, dtype=np.float32)).reshape(forward.y.shape)
    gradients = rnnkit.backward(desc, w, forward.workspace, dy, forward.hy)
    found = [forward.y.copy(), *forward[1:3], *gradients, forward.workspace.hidden(0).copy()]
    return [one for one in found if one is not None], forward.workspace


@pytest.mark.parametrize("kept", ["pooled", "passed on"])
@pytest.mark.parametrize(("network", "kind"), pairs(NETWORKS, KINDS))
def test_calls_of_other_lengths_have_the_bits_of_first_ones(monkeypatch, network, kind, kept):
    desc = Problem(**network, input_size=5, hidden_size=7, batch_size=4, dtype="float32").desc
    w, workspace = rnnkit.init_weights(desc, seed=0), None
    for number, seq_len in enumerate([9, 4, 9, 1, 14, 13, 2, 17, 40, 0, 33, 40]):
        arguments, given = call_of(desc, w, seq_len, kind, number)
        options = {"workspace": workspace} if kept == "passed on" else {}
        found, workspace = results_of(desc, w, arguments, given, **options)
        fresh = memory.Memory()
        with monkeypatch.context() as patch:
            patch.setattr(Shelf, "take", lambda shelf, fresh=fresh: fresh)
            expected, _ = results_of(desc, w, arguments, given)
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same_bits(number, one, other)


@pytest.mark.parametrize("network", NETWORKS[:3])
def test_a_plan_serves_other_lengths(network):
    desc = Problem(**network, input_size=5, hidden_size=7, batch_size=4, dtype="float32").desc
    w = rnnkit.init_weights(desc, seed=0)
    plan = rnnkit.prepare(desc, w)
    for seq_len in (300, 290, 299, 400, 1, 310, 310, 7):
        for kind in ("full", "lengths"):
            (_, _, x, hx), given = call_of(desc, w, seq_len, kind, 0)
            found, expected = (
                one.infer(x, hx, lengths=given.get("lengths")) for one in (plan, rnnkit.prepare(desc, w))
            )
            assert_same_bits("y", found.y, expected.y)
            assert_same_bits("hy", found.hy, expected.hy)


@pytest.fixture
def preparations(monkeypatch):
    """How often kernel calls of a forward have been prepared."""
    found, prepare = [], engine.prepare_forward
    monkeypatch.setattr(engine, "prepare_forward", lambda *given: found.append(given[1].seq_len) or prepare(*given))
    return found


def test_a_shorter_batch_prepares_nothing(preparations):
    net = rnnkit.GRU(3, 5, seed=0)
    for seq_len in (50, 20, 31, 50, 49):
        net.forward(np.ones((seq_len, 2, 3), np.float32))
    assert len(preparations) == 1


def test_a_longer_batch_makes_room_for_more(preparations):
    net = rnnkit.GRU(3, 5, seed=0)
    for seq_len in range(20, 60):
        net.forward(np.ones((seq_len, 2, 3), np.float32))
    assert len(preparations) <= 6


def test_a_batch_in_several_kernel_calls_is_prepared_for_itself(monkeypatch, preparations):
    """A call of a part of the steps cannot serve a batch of other lengths."""
    monkeypatch.setattr(route, "LISTED_ROWS", 40)
    net = rnnkit.LSTM(3, 5, bidirectional=True, seed=0)
    for seq_len in (50, 47, 50):
        x = np.random.default_rng(seq_len).standard_normal((seq_len, 2, 3), np.float32)
        forward = net.forward(x)
        assert_same_bits("y", forward.y, net.infer(x).y)
        gradients = net.backward(forward.workspace, forward.y)
        expected = net.forward(x, checkpoint_steps=1000)
        assert_same_bits("dw", gradients.dw, net.backward(expected.workspace, forward.y).dw)
    assert preparations[:3] == [50, 47, 50]


def test_no_capacity_is_above_what_one_kernel_call_runs():
    arena = memory.Memory().arena
    found = [rows.rows_of(steps.steps_of(count, 4), arena, 16).capacity for count in (5, 10, 14, 16, 20, 19)]
    assert found == [5, 12, 16, 16, 20, 19]


@pytest.mark.parametrize("lengths", [None, [3, 0, 9, 1]])
@pytest.mark.parametrize("name", ["row_numbers", "_cut", "_list"])
def test_an_interrupt_while_rows_are_listed(monkeypatch, name, lengths):
    """The next call lists them again: also one of the number of steps that was interrupted."""
    net, rng = rnnkit.LSTM(3, 5, bidirectional=True, seed=0), np.random.default_rng(0)
    x, longer = (rng.standard_normal((count, 4, 3), np.float32) for count in (9, 20))
    expected, workspace = net.forward(x, lengths=lengths).y.copy(), net.forward(longer).workspace
    workspace = net.forward(longer, lengths=[20, 3, 0, 1], workspace=workspace).workspace

    def interrupted(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rows if name == "row_numbers" else rows.StepRows, name, interrupted, raising=False)
        for kind in workspace.memory.arena.rows.values():
            patch.setitem(kind.__dict__, name, interrupted) if name == "_list" and kind.padded else None
        try:
            net.forward(x, lengths=lengths, workspace=workspace)
        except KeyboardInterrupt:
            pass
    assert_same_bits("y", net.forward(x, lengths=lengths, workspace=workspace).y, expected)
