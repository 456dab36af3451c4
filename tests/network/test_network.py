"""LSTM, GRU and RNN: what they hold, whom they call, and the file that they write and read."""

import dataclasses
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from messages import raises
from tolerances import GRADIENTS, OUTPUTS, assert_same_results

import rnnkit
from rnnkit import GRU, LSTM, RNN, RNNDescriptor, init_weights, load, weight_views

PROJECTED = dict(proj_size=2, cell_clip=(-1, float("inf")), bias="input", dropout=0.5)
SKIP = dict(input_mode="skip", reset_after=False)
KINDS = [
    (lambda: LSTM(3, 5, seed=4), RNNDescriptor("lstm", 3, 5)),
    (lambda: LSTM(3, 5, 2, True, **PROJECTED, seed=4), RNNDescriptor("lstm", 3, 5, 2, True, **PROJECTED)),
    (lambda: GRU(5, 5, 2, **SKIP, dtype=np.float64, seed=4), RNNDescriptor("gru", 5, 5, 2, **SKIP, dtype="float64")),
    (lambda: RNN(3, 5, bidirectional=True, seed=4), RNNDescriptor("rnn_tanh", 3, 5, bidirectional=True)),
    (lambda: RNN(3, 5, nonlinearity="relu", bias="none", seed=4), RNNDescriptor("rnn_relu", 3, 5, bias="none")),
]
ids = [repr(desc) for _, desc in KINDS]


def assert_same_network(first, second):
    assert type(first) is type(second) and first.desc == second.desc
    assert first.weights.dtype == second.weights.dtype
    np.testing.assert_array_equal(first.weights, second.weights)


@pytest.mark.parametrize(("make", "desc"), KINDS, ids=ids)
def test_network_has_its_descriptor_and_fresh_weights(make, desc):
    net = make()
    assert net.desc == desc
    assert net.weights.dtype == desc.dtype
    np.testing.assert_array_equal(net.weights, init_weights(desc, seed=4))
    assert list(net.views) == list(weight_views(desc, net.weights))


def test_weights_differ_without_a_seed():
    assert (GRU(3, 5).weights != GRU(3, 5).weights).any()


def test_descriptor_cannot_be_replaced():
    with pytest.raises(AttributeError, match="desc"):
        LSTM(3, 5).desc = RNNDescriptor("lstm", 3, 4)


def test_repr():
    assert repr(LSTM(3, 5, 2)) == "<LSTM: RNNDescriptor('lstm', 3, 5, num_layers=2), 440 weights>"


@pytest.mark.parametrize("kind", [LSTM, GRU, RNN])
def test_methods_are_the_functions_on_descriptor_and_weights(kind):
    net = kind(3, 5, num_layers=2, dropout=0.5, dtype="float64", seed=0)
    draw = np.random.default_rng(1).standard_normal
    x, hx, dy, dhy = draw((6, 2, 3)), draw((2, 2, 5)), draw((6, 2, 5)), draw((2, 2, 5))
    cx, dcy = (draw((2, 2, 5)), draw((2, 2, 5))) if kind is LSTM else (None, None)
    of_net, states, lengths = (net.desc, net.weights), (x, hx, cx), [6, 4]
    own, other = np.ones_like(net.weights), np.ones_like(net.weights)

    forward = net.forward(*states, lengths=lengths, seed=7)
    expected = rnnkit.forward(*of_net, *states, lengths=lengths, seed=7)
    assert_same_results(forward, expected, OUTPUTS)
    backward = net.backward(forward.workspace, dy, dhy, dcy, dw=own)
    assert_same_results(backward, rnnkit.backward(*of_net, expected.workspace, dy, dhy, dcy, dw=other), GRADIENTS)
    assert backward.dw is own
    inferred = net.infer(*states, lengths=lengths)
    assert_same_results(inferred, rnnkit.infer(*of_net, *states, lengths=lengths), OUTPUTS)
    assert_same_results(net.prepare().infer(*states, lengths=lengths), inferred, OUTPUTS)
    hidden = forward.workspace.hidden(0, 0)
    again = net.forward(*states, lengths=lengths, seed=7, workspace=forward.workspace)
    assert np.shares_memory(again.workspace.hidden(0, 0), hidden)


@pytest.mark.parametrize(("make", "desc"), KINDS, ids=ids)
def test_saved_network_is_loaded_and_can_be_trained(make, desc, tmp_path):
    net = make()
    net.weights[3] = np.nan
    net.save(tmp_path / "net.npz")
    assert_same_network(load(str(tmp_path / "net.npz")), net)
    found = load(tmp_path / "net.npz")
    assert_same_network(found, net)
    found.views["weight_hh_l0"][:] = 3
    assert (found.weights == 3).any() and found.weights.flags.c_contiguous


def test_file_is_plain_numpy(tmp_path):
    net = GRU(3, 5, seed=0)
    net.save(tmp_path / "net.npz")
    with np.load(tmp_path / "net.npz", allow_pickle=False) as archive:
        assert sorted(archive) == ["descriptor", "format", "weights"]
        assert archive["format"] == 1
        later = {"learned_initial_state": False}  # not in the file, so that versions before it read it
        assert json.loads(str(archive["descriptor"])) | later == dataclasses.asdict(net.desc)
        np.testing.assert_array_equal(archive["weights"], net.weights)


def half_written(member, *others, **options):
    member.write(b"PK")
    raise OSError("no space left")


def not_renamed(source, target):
    raise OSError("no space left")


def interrupted(descriptor):
    raise KeyboardInterrupt("no space left")


FAILURES = [(np.lib.format, "write_array", half_written), (os, "replace", not_renamed), (os, "fsync", interrupted)]


@pytest.mark.parametrize(("owner", "name", "failure"), FAILURES)
def test_failed_save_keeps_the_old_file(owner, name, failure, tmp_path, monkeypatch):
    net = LSTM(3, 5, seed=0)
    net.save(tmp_path / "net.npz")
    monkeypatch.setattr(owner, name, failure)
    with pytest.raises((OSError, KeyboardInterrupt), match="no space left"):
        GRU(3, 5).save(tmp_path / "net.npz")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["net.npz"]
    assert_same_network(load(tmp_path / "net.npz"), net)


def assert_load_refuses(path, text):
    with raises(ValueError, f"load: path {os.fspath(path)!r} | {text}"):
        load(path)


class Exploit:
    """Says so when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def test_incomplete_or_other_file_is_refused(tmp_path):
    path = tmp_path / "net.npz"
    LSTM(3, 5, seed=0).save(path)
    whole = path.read_bytes()
    contents = [whole[:size] for size in (0, 1, 4, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1)]
    contents += [b"some text\n" * 100, b"\x93NUMPY\x01\x00", pickle.dumps([1, 2, 3]), pickle.dumps(Exploit())]
    contents.append(b"X" + whole[1:])  # NumPy would take it for a pickle and recommend to load it as one
    for content in contents:
        path.write_bytes(content)
        assert_load_refuses(path, "complete .npz")


def test_flipped_bit_in_any_member_is_refused(tmp_path):
    path = tmp_path / "net.npz"
    LSTM(3, 5, seed=0).save(path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        ends = [entry.header_offset for entry in archive.infolist()[1:]] + [archive.start_dir]
    assert len(ends) == 3
    for end in ends:
        path.write_bytes(whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:])
        assert_load_refuses(path, "undamaged .npz | Bad CRC-32 for file")


def written(path, **changed):
    """Write what save would write, with some members changed, or left out where the change is None."""
    desc = RNNDescriptor("lstm", 3, 5)
    members = dict(format=1, descriptor=descriptor(), weights=init_weights(desc, 0)) | changed
    np.savez(path, allow_pickle=True, **{name: value for name, value in members.items() if value is not None})
    return path


def descriptor(without=(), **changed):
    values = dataclasses.asdict(RNNDescriptor("lstm", 3, 5)) | changed
    return json.dumps({name: value for name, value in values.items() if name not in without})


SIZE = "weights | float32 | (num_weights=200,)"
OBJECTS = "undamaged .npz | object array"
FEWER, UNKNOWN = ["dtype", "bias"], descriptor(peephole=True)
BAD_MEMBERS = [
    (dict(weights=None), "no weights"),
    (dict(format=None, descriptor=None), "no format, descriptor"),
    (dict(format=2), "format 1 | format 2"),
    (dict(format=[1, 1]), "format 1 | int64 | (2,)"),
    (dict(format="one"), "format 1 | <U3 | ()"),
    (dict(weights=np.zeros(199, "f4")), f"{SIZE} | (199,)"),
    (dict(weights=np.zeros((200, 1), "f4")), f"{SIZE} | (200, 1)"),
    (dict(weights=np.zeros(200)), f"{SIZE} | float64 | (200,)"),
    (dict(descriptor=descriptor(hidden_size=6)), "weights | float32 | (num_weights=264,) | (200,)"),
    (dict(weights=np.array([Exploit()], object)), f"{OBJECTS} weights"),
    (dict(descriptor=np.array({}, object)), f"{OBJECTS} descriptor"),
    (dict(format=np.array(1, object)), f"{OBJECTS} format"),
    (dict(descriptor="lstm"), "descriptor | Expecting value"),
    (dict(descriptor="3"), "descriptor | 'int' object is not iterable"),
    (dict(descriptor="[]"), "descriptor | missing fields ['allow_tf32', 'bias', 'bidirectional', "),
    (dict(descriptor=descriptor(FEWER)), "descriptor | missing fields ['bias', 'dtype'] | unknown fields []"),
    (dict(descriptor=UNKNOWN), "descriptor | missing fields [] | unknown fields ['peephole']"),
    (dict(descriptor=descriptor(hidden_size=0)), "descriptor | RNNDescriptor: hidden_size | 1 | 0"),
    (dict(descriptor=descriptor(hidden_size="5")), "descriptor | RNNDescriptor: hidden_size | int | str"),
]


@pytest.mark.parametrize(("changed", "text"), BAD_MEMBERS)
def test_file_with_other_members_is_refused(changed, text, tmp_path):
    assert_load_refuses(written(tmp_path / "net.npz", **changed), text)


def test_file_made_of_these_members_loads(tmp_path):
    assert_same_network(load(written(tmp_path / "net.npz")), LSTM(3, 5, seed=0))
