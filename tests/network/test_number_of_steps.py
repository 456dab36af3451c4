"""The number of steps is data of a call: what one call has prepared serves calls of other lengths, to the same bits."""

import numpy as np
import pytest
from combinations import pairs
from problems import Problem
from tolerances import GRADIENTS, OUTPUTS, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.call import memory, steps
from rnnkit.call.pool import Shelf
from rnnkit.cells import LayerNormLSTM, VariationalGRU
from rnnkit.cpu import backward, engine, route, rows

NETWORKS = [
    dict(mode="lstm"),
    dict(mode="gru", bidirectional=True),
    dict(mode="rnn_tanh", num_layers=3),
    dict(mode="lstm", bidirectional=True, num_layers=2, dropout=0.4),
    dict(mode="lstm", proj_size=3),
    dict(mode=LayerNormLSTM()),
    dict(mode=VariationalGRU(0.3), bidirectional=True),
]
KINDS = ["full", "lengths", "resets"]


def call_of(network, seq_len, kind, seed):
    """A problem of this network and the options of a call of this kind."""
    rng = np.random.default_rng([seed, seq_len])
    sizes = dict(input_size=5, hidden_size=7, seq_len=seq_len, batch_size=4, dtype="float32", seed=seed)
    lengths = tuple(rng.integers(0, seq_len + 1, 4)) if kind == "lengths" else None
    resets = {"resets": rng.random((seq_len, 4)) < 0.3, "initial": "hx"} if kind == "resets" else {}
    return Problem(**network, **sizes, lengths=lengths), resets


@pytest.mark.parametrize("kept", ["pooled", "passed on"])
@pytest.mark.parametrize(("network", "kind"), pairs(NETWORKS, KINDS))
def test_call_is_bit_identical_after_calls_of_other_lengths(monkeypatch, network, kind, kept):
    workspace = None
    for seed, seq_len in enumerate([9, 4, 9, 1, 14, 13, 2, 17, 40, 0, 33, 40]):
        problem, options = call_of(network, seq_len, kind, seed)
        found = problem.forward(workspace=workspace if kept == "passed on" else None, **options)
        workspace, fresh = found.workspace, memory.Memory()
        gradients, y, hidden = problem.backward(workspace), found.y.copy(), workspace.hidden(0).copy()
        with monkeypatch.context() as patch:
            patch.setattr(Shelf, "take", lambda shelf, fresh=fresh: fresh)
            expected = problem.forward(**options)
            assert_same_results(gradients, problem.backward(expected.workspace), GRADIENTS)
        assert_same_results(found._replace(y=y), expected, OUTPUTS)
        assert_same_bits("hidden", hidden, expected.workspace.hidden(0))


@pytest.fixture
def preparations(monkeypatch):
    """How often kernel calls of a forward have been prepared."""
    found, prepare = [], engine.prepare_forward
    monkeypatch.setattr(engine, "prepare_forward", lambda *given: found.append(given[1].seq_len) or prepare(*given))
    return found


@pytest.mark.parametrize(("lengths", "most"), [((50, 20, 31, 50, 49), 1), (range(20, 60), 6)])
def test_shorter_batches_prepare_nothing_and_longer_ones_little(preparations, lengths, most):
    net = rnnkit.GRU(3, 5, seed=0)
    for seq_len in lengths:
        net.forward(np.ones((seq_len, 2, 3), np.float32))
    assert 1 <= len(preparations) <= most


def test_batches_of_few_and_of_many_steps_by_turns_prepare_nothing(monkeypatch, preparations):
    """Few steps read the weights in place, many read packed ones: each have memory of their own."""
    backwards, prepare = [], backward.prepare_backward
    monkeypatch.setattr(backward, "prepare_backward", lambda *given: backwards.append(given) or prepare(*given))
    net, lengths = rnnkit.GRU(3, 5, seed=0), (50, 20, 4)
    for _ in range(3):
        del preparations[:], backwards[:]
        for seq_len in lengths:
            found = net.forward(np.ones((seq_len, 2, 3), np.float32))
            net.backward(found.workspace, found.y)
            del found
    assert [route.route(net.desc, seq_len, 2)[:2] for seq_len in lengths] == [
        (False, False),
        (False, True),
        (True, True),
    ]
    assert (preparations, backwards) == ([], [])


def test_batch_in_several_kernel_calls_is_prepared_for_itself(monkeypatch, preparations):
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


def test_capacity_is_at_most_what_one_kernel_call_runs():
    arena = memory.Memory().arena
    found = [rows.rows_of(steps.steps_of(count, 4), arena, 16).capacity for count in (5, 10, 14, 16, 20, 19)]
    assert found == [5, 12, 16, 16, 20, 19]


@pytest.mark.parametrize("lengths", [None, [3, 0, 9, 1]])
@pytest.mark.parametrize("name", ["row_numbers", "cuts", "list"])
def test_call_after_an_interrupt_lists_its_rows_again(monkeypatch, name, lengths):
    """Also one of the number of steps that was interrupted."""
    net, rng = rnnkit.LSTM(3, 5, bidirectional=True, seed=0), np.random.default_rng(0)
    x, longer = (rng.standard_normal((count, 4, 3), np.float32) for count in (9, 20))
    expected, workspace = net.forward(x, lengths=lengths).y.copy(), net.forward(longer).workspace
    workspace = net.forward(longer, lengths=[20, 3, 0, 1], workspace=workspace).workspace

    def interrupted(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if name == "row_numbers":
            patch.setattr(rows, name, interrupted)
        for kind in workspace.memory.arena.rows.values():
            value = {2: (None, interrupted)} if name == "cuts" else interrupted
            patch.setitem(kind.__dict__, name, value) if name != "row_numbers" and kind.padded else None
        try:
            net.forward(x, lengths=lengths, workspace=workspace)
        except KeyboardInterrupt:
            pass
    assert_same_bits("y", net.forward(x, lengths=lengths, workspace=workspace).y, expected)
