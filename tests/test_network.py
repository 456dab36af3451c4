"""LSTM, GRU and RNN: what they hold, whom they call, and the file that they write and read."""

import copy
import dataclasses
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from messages import says

import rnnkit
from rnnkit import GRU, LSTM, RNN, RNNDescriptor, init_weights, load, weight_views

KINDS = [
    (lambda: LSTM(3, 5, seed=4), RNNDescriptor("lstm", 3, 5)),
    (lambda: LSTM(3, 5, 2, True, proj_size=2, cell_clip=(-1, float("inf")), bias="input", dropout=0.5, seed=4),
     RNNDescriptor("lstm", 3, 5, 2, True, proj_size=2, cell_clip=(-1, float("inf")), bias="input", dropout=0.5)),
    (lambda: GRU(5, 5, num_layers=2, input_mode="skip", reset_after=False, dtype=np.float64, seed=4),
     RNNDescriptor("gru", 5, 5, 2, input_mode="skip", reset_after=False, dtype="float64")),
    (lambda: RNN(3, 5, bidirectional=True, seed=4), RNNDescriptor("rnn_tanh", 3, 5, bidirectional=True)),
    (lambda: RNN(3, 5, nonlinearity="relu", bias="none", seed=4), RNNDescriptor("rnn_relu", 3, 5, bias="none")),
]
ids = [repr(desc) for _, desc in KINDS]


def assert_same_network(first, second):
    assert type(first) is type(second) and first.desc == second.desc
    assert first.weights.dtype == second.weights.dtype
    np.testing.assert_array_equal(first.weights, second.weights)


@pytest.mark.parametrize(("make", "desc"), KINDS, ids=ids)
def test_holds_descriptor_and_fresh_weights(make, desc):
    net = make()
    assert net.desc == desc
    assert net.weights.dtype == desc.dtype
    np.testing.assert_array_equal(net.weights, init_weights(desc, seed=4))
    assert list(net.views) == list(weight_views(desc, net.weights))


def test_without_a_seed_the_weights_differ():
    assert (GRU(3, 5).weights != GRU(3, 5).weights).any()


@pytest.mark.parametrize(("make", "where", "facts"), [
    (lambda: GRU(3, 5, proj_size=2),
     "RNNDescriptor: proj_size", [None, 'mode="gru"', 2, 'mode="lstm"']),
    (lambda: RNN(3, 5, cell_clip=(-1, 1)),
     "RNNDescriptor: cell_clip", [None, 'mode="rnn_tanh"', (-1.0, 1.0), 'mode="lstm"']),
    (lambda: LSTM(3, 5, reset_after=False),
     "RNNDescriptor: reset_after", [True, 'mode="lstm"', False, 'mode="gru"']),
    (lambda: RNN(3, 5, nonlinearity="sigmoid"), "RNN: nonlinearity", ["tanh", "relu", "'sigmoid'"]),
])
def test_options_of_another_mode_are_refused(make, where, facts):
    with pytest.raises(ValueError, match=says(where, *facts)):
        make()


def test_writing_a_view_writes_the_weights():
    net = LSTM(3, 5, seed=0)
    net.views["bias_hh_l0"][:] = 3
    assert net.weights[-20:].tolist() == [3] * 20


def test_weights_change_in_place():
    net = LSTM(3, 5, seed=0)
    buffer, before = net.weights, net.weights.copy()
    net.weights -= np.float32(0.5)
    assert net.weights is buffer
    np.testing.assert_array_equal(buffer, before - np.float32(0.5))


@pytest.mark.parametrize(("w", "kind", "facts"), [
    (np.zeros(199, "f4"), ValueError, ["(num_weights=200,)", (199,)]),
    (np.zeros(200), TypeError, ["float32", "float64", 'weights.astype("float32")']),
    ([0.0] * 200, TypeError, ["array", "list"]),
])
def test_wrong_weights_are_refused_and_the_old_ones_stay(w, kind, facts):
    net = LSTM(3, 5, seed=0)
    buffer = net.weights
    with pytest.raises(kind, match=says("LSTM: weights", *facts)):
        net.weights = w
    assert net.weights is buffer


def test_the_descriptor_cannot_be_replaced():
    with pytest.raises(AttributeError, match="desc"):
        LSTM(3, 5).desc = RNNDescriptor("lstm", 3, 4)


def test_repr():
    assert repr(LSTM(3, 5, 2)) == "<LSTM: RNNDescriptor('lstm', 3, 5, num_layers=2), 440 weights>"


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_are_networks_of_their_own(duplicate):
    net = LSTM(3, 5, seed=0)
    before = net.weights.copy()
    twin = duplicate(net)
    assert_same_network(twin, net)
    twin.views["bias_hh_l0"][:] = 9
    assert twin.weights[-1] == 9
    np.testing.assert_array_equal(net.weights, before)


def assert_same_results(results, expected):
    assert type(results) is type(expected)
    for name, array in expected._asdict().items():
        if name != "workspace":
            np.testing.assert_array_equal(getattr(results, name), array, err_msg=name, strict=array is not None)


@pytest.mark.parametrize("kind", [LSTM, GRU, RNN])
def test_methods_are_the_functions_on_descriptor_and_weights(kind):
    net = kind(3, 5, num_layers=2, dropout=0.5, dtype="float64", seed=0)
    draw = np.random.default_rng(1).standard_normal
    x, hx, dy, dhy = draw((6, 2, 3)), draw((2, 2, 5)), draw((6, 2, 5)), draw((2, 2, 5))
    cx, dcy = (draw((2, 2, 5)), draw((2, 2, 5))) if kind is LSTM else (None, None)
    lengths = [6, 4]
    own, other = np.ones_like(net.weights), np.ones_like(net.weights)

    forward = net.forward(x, hx, cx, lengths=lengths, seed=7)
    expected = rnnkit.forward(net.desc, net.weights, x, hx, cx, lengths=lengths, seed=7)
    assert_same_results(forward, expected)
    backward = net.backward(forward.workspace, dy, dhy, dcy, dw=own)
    assert_same_results(
        backward, rnnkit.backward(net.desc, net.weights, expected.workspace, dy, dhy, dcy, dw=other)
    )
    assert backward.dw is own
    assert_same_results(
        net.infer(x, hx, cx, lengths=lengths), rnnkit.infer(net.desc, net.weights, x, hx, cx, lengths=lengths)
    )
    assert_same_results(net.prepare().infer(x, hx, cx, lengths=lengths), net.infer(x, hx, cx, lengths=lengths))
    hidden = forward.workspace.hidden(0, 0)
    again = net.forward(x, hx, cx, lengths=lengths, seed=7, workspace=forward.workspace)
    assert np.shares_memory(again.workspace.hidden(0, 0), hidden)


@pytest.mark.parametrize(("make", "desc"), KINDS, ids=ids)
def test_save_and_load(make, desc, tmp_path):
    net = make()
    net.weights[3] = np.nan
    net.save(tmp_path / "net.npz")
    assert_same_network(load(tmp_path / "net.npz"), net)
    assert_same_network(load(str(tmp_path / "net.npz")), net)


def test_loaded_weights_can_be_trained(tmp_path):
    LSTM(3, 5, seed=0).save(tmp_path / "net.npz")
    net = load(tmp_path / "net.npz")
    net.views["bias_hh_l0"][:] = 3
    assert net.weights[-1] == 3 and net.weights.flags.c_contiguous


def test_the_path_is_taken_as_it_is(tmp_path):
    LSTM(3, 5, seed=0).save(tmp_path / "net.model")
    assert [path.name for path in tmp_path.iterdir()] == ["net.model"]


def test_a_relative_path_is_written_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    LSTM(3, 5, seed=0).save("net")
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


def test_the_file_is_plain_numpy(tmp_path):
    net = GRU(3, 5, seed=0)
    net.save(tmp_path / "net.npz")
    with np.load(tmp_path / "net.npz", allow_pickle=False) as archive:
        assert sorted(archive) == ["descriptor", "format", "weights"]
        assert archive["format"] == 1
        assert json.loads(str(archive["descriptor"])) == dataclasses.asdict(net.desc)
        np.testing.assert_array_equal(archive["weights"], net.weights)


def test_a_new_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    LSTM(3, 5, seed=0).save(tmp_path / "net.npz")
    assert (tmp_path / "net.npz").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_save_replaces_an_existing_file(tmp_path):
    LSTM(3, 5, seed=0).save(tmp_path / "net.npz")
    net = GRU(3, 5, seed=1)
    net.save(tmp_path / "net.npz")
    assert_same_network(load(tmp_path / "net.npz"), net)


def half_written(member, *others, **options):
    member.write(b"PK")
    raise OSError("no space left")


def not_renamed(source, target):
    raise OSError("no space left")


def interrupted(descriptor):
    raise KeyboardInterrupt("no space left")


@pytest.mark.parametrize(("owner", "name", "failure"), [
    (np.lib.format, "write_array", half_written), (os, "replace", not_renamed), (os, "fsync", interrupted),
])
def test_a_failed_save_leaves_what_was_there(owner, name, failure, tmp_path, monkeypatch):
    net = LSTM(3, 5, seed=0)
    net.save(tmp_path / "net.npz")
    monkeypatch.setattr(owner, name, failure)
    with pytest.raises((OSError, KeyboardInterrupt), match="no space left"):
        GRU(3, 5).save(tmp_path / "net.npz")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["net.npz"]
    assert_same_network(load(tmp_path / "net.npz"), net)


def test_save_into_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        LSTM(3, 5).save(tmp_path / "nowhere" / "net.npz")


def test_load_of_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "net.npz")


def assert_load_refuses(path, *facts):
    with pytest.raises(ValueError, match=says(f"load: path {os.fspath(path)!r}", *facts)):
        load(path)


CUT_OFF, DAMAGED = "complete .npz", "undamaged .npz"


def test_a_file_cut_off_anywhere(tmp_path):
    path = tmp_path / "net.npz"
    LSTM(3, 5, seed=0).save(path)
    whole = path.read_bytes()
    for size in (0, 1, 4, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert_load_refuses(path, CUT_OFF)


@pytest.mark.parametrize("content", [b"some text\n" * 100, b"\x93NUMPY\x01\x00", pickle.dumps([1, 2, 3])])
def test_a_file_of_another_kind(content, tmp_path):
    (tmp_path / "net.npz").write_bytes(content)
    assert_load_refuses(tmp_path / "net.npz", CUT_OFF)


def test_a_plain_npy_file(tmp_path):
    np.save(tmp_path / "net.npy", np.zeros(3))
    assert_load_refuses(tmp_path / "net.npy", CUT_OFF)


def test_a_flipped_bit_in_any_member(tmp_path):
    path = tmp_path / "net.npz"
    LSTM(3, 5, seed=0).save(path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        ends = [entry.header_offset for entry in archive.infolist()[1:]] + [archive.start_dir]
    assert len(ends) == 3
    for end in ends:
        path.write_bytes(whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:])
        assert_load_refuses(path, DAMAGED, "Bad CRC-32 for file")


def written(path, **changed):
    """Write what save would write, with some members changed, or left out where the change is None."""
    desc = RNNDescriptor("lstm", 3, 5)
    members = dict(format=1, descriptor=json.dumps(dataclasses.asdict(desc)), weights=init_weights(desc, 0)) | changed
    np.savez(path, allow_pickle=True, **{name: value for name, value in members.items() if value is not None})
    return path


def descriptor(without=(), **changed):
    values = dataclasses.asdict(RNNDescriptor("lstm", 3, 5)) | changed
    return json.dumps({name: value for name, value in values.items() if name not in without})


SIZE = "weights", "float32", "(num_weights=200,)"
BAD_MEMBERS = [
    (dict(weights=None), ["no weights"]),
    (dict(format=None, descriptor=None), ["no format, descriptor"]),
    (dict(format=2), ["format 1", "format 2"]),
    (dict(format=[1, 1]), ["format 1", "int64", (2,)]),
    (dict(format="one"), ["format 1", "<U3", ()]),
    (dict(weights=np.zeros(199, "f4")), [*SIZE, (199,)]),
    (dict(weights=np.zeros((200, 1), "f4")), [*SIZE, (200, 1)]),
    (dict(weights=np.zeros(200)), [*SIZE, "float64", (200,)]),
    (dict(descriptor=descriptor(hidden_size=6)),
     ["weights", "float32", "(num_weights=264,)", (200,)]),
    (dict(weights=np.array([0.0] * 200, object)), [DAMAGED, "object array weights"]),
    (dict(descriptor=np.array({}, object)), [DAMAGED, "object array descriptor"]),
    (dict(format=np.array(1, object)), [DAMAGED, "object array format"]),
    (dict(descriptor="lstm"), ["descriptor", "Expecting value"]),
    (dict(descriptor="3"), ["descriptor", "'int' object is not iterable"]),
    (dict(descriptor="[]"), ["descriptor", "missing fields ['allow_tf32', 'bias', 'bidirectional', "]),
    (dict(descriptor=descriptor(without=["dtype", "bias"])),
     ["descriptor", "missing fields ['bias', 'dtype']", "unknown fields []"]),
    (dict(descriptor=descriptor(peephole=True)),
     ["descriptor", "missing fields []", "unknown fields ['peephole']"]),
    (dict(descriptor=descriptor(hidden_size=0)),
     ["descriptor", "RNNDescriptor: hidden_size", 1, 0]),
    (dict(descriptor=descriptor(hidden_size="5")),
     ["descriptor", "RNNDescriptor: hidden_size", "int", "str"]),
]


@pytest.mark.parametrize(("changed", "facts"), BAD_MEMBERS, ids=[str(facts)[:60] for _, facts in BAD_MEMBERS])
def test_a_file_with_other_members(changed, facts, tmp_path):
    assert_load_refuses(written(tmp_path / "net.npz", **changed), *facts)


def test_the_file_that_these_are_made_of_loads(tmp_path):
    assert_same_network(load(written(tmp_path / "net.npz")), LSTM(3, 5, seed=0))


class Exploit:
    """Says so when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def test_nothing_is_unpickled(tmp_path):
    assert_load_refuses(written(tmp_path / "net.npz", weights=np.array([Exploit()], object)), DAMAGED, "object array")
    (tmp_path / "pickle").write_bytes(pickle.dumps(Exploit()))
    assert_load_refuses(tmp_path / "pickle", CUT_OFF)


def test_a_damaged_array_header_is_a_clear_error(tmp_path):
    """NumPy's parser of headers raises tokenize.TokenError here, which is no ValueError."""
    path = tmp_path / "net.npz"
    LSTM(3, 5, 2, bidirectional=True, seed=0).save(path)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.rindex(b"(1080,")] = ord("i")
    path.write_bytes(damaged)
    assert_load_refuses(path, DAMAGED)


def test_a_damaged_first_byte_is_a_clear_error(tmp_path):
    """NumPy would take the file for a pickle and recommend to load it as one."""
    path = tmp_path / "net.npz"
    LSTM(3, 5, seed=0).save(path)
    path.write_bytes(b"X" + path.read_bytes()[1:])
    assert_load_refuses(path, CUT_OFF)


def test_a_file_that_cannot_be_written_is_named_as_the_caller_did(tmp_path):
    path = tmp_path / "missing" / "net.npz"
    with pytest.raises(FileNotFoundError) as raised:
        GRU(3, 2, seed=0).save(path)
    assert raised.value.filename == str(path)
