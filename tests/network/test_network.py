"""LSTM, GRU, RNN and Network: what they hold, whom they call, how they are copied, compared, pickled, moved, saved."""

import copy
import dataclasses
import json
import os
import pickle

import numpy as np
import own_cells
import pytest
from messages import raises
from tolerances import GRADIENTS, OUTPUTS, assert_same_results

import rnnkit
from rnnkit import GRU, LSTM, RNN, Network, RNNDescriptor, cells, load, weight_views

PROJECTED = dict(proj_size=2, cell_clip=(-1, float("inf")), bias="input", dropout=0.5)
SKIP = dict(input_mode="skip", reset_after=False)
PEEPHOLE, OWN = cells.PeepholeLSTM(candidate=cells.Softsign()), own_cells.Independent(scale=2)
KINDS = [
    (lambda: LSTM(3, 5, seed=4), RNNDescriptor("lstm", 3, 5)),
    (lambda: LSTM(3, 5, 2, True, **PROJECTED, seed=4), RNNDescriptor("lstm", 3, 5, 2, True, **PROJECTED)),
    (lambda: GRU(5, 5, 2, **SKIP, dtype=np.float64, seed=4), RNNDescriptor("gru", 5, 5, 2, **SKIP, dtype="float64")),
    (lambda: RNN(3, 5, bidirectional=True, seed=4), RNNDescriptor("rnn_tanh", 3, 5, bidirectional=True)),
    (lambda: RNN(3, 5, nonlinearity="relu", bias="none", seed=4), RNNDescriptor("rnn_relu", 3, 5, bias="none")),
    (lambda: Network(PEEPHOLE, 3, 5, seed=4), RNNDescriptor(PEEPHOLE, 3, 5)),
    (lambda: Network(OWN, 3, 5, seed=4), RNNDescriptor(OWN, 3, 5)),
]
of_each_kind = pytest.mark.parametrize(("make", "desc"), KINDS, ids=[repr(desc) for _, desc in KINDS])


@of_each_kind
def test_network_has_its_descriptor_and_fresh_weights(make, desc):
    net = make()
    np.testing.assert_array_equal(net.weights, rnnkit.init_weights(desc, seed=4))
    assert net.desc == desc and net.weights.dtype == desc.dtype
    assert list(net.views) == list(weight_views(desc, net.weights))
    given = type(net).from_descriptor(desc, net.weights)
    assert given.weights is net.weights and given == net == type(net).from_descriptor(desc, seed=4)
    sizes = net.mode, net.input_size, net.hidden_size, net.num_layers, net.num_directions
    assert sizes == (desc.mode, desc.input_size, 5, desc.num_layers, desc.num_directions)
    assert net.output_size == desc.output_size and net.dtype == desc.np_dtype
    assert net.num_parameters == net.weights.size == rnnkit.num_weights(desc)
    assert Network.from_descriptor(desc, seed=4).desc == desc


def test_weights_differ_without_a_seed():
    assert (GRU(3, 5).weights != GRU(3, 5).weights).any()


def test_descriptor_cannot_be_replaced():
    with pytest.raises(AttributeError, match="desc"):
        LSTM(3, 5).desc = RNNDescriptor("lstm", 3, 4)


class Subclass(LSTM):
    pass


def test_from_descriptor_of_a_subclass_makes_a_subclass():
    net = Subclass.from_descriptor(RNNDescriptor("lstm", 3, 5), seed=0)
    assert type(net) is type(net.copy()) is Subclass and net != LSTM(3, 5, seed=0)


def test_methods_are_the_functions_on_descriptor_and_weights():
    net = LSTM(3, 5, num_layers=2, dropout=0.5, dtype="float64", seed=0)
    draw = np.random.default_rng(1).standard_normal
    x, hx, cx, dy, dhy, dcy = map(draw, [(6, 2, 3), (2, 2, 5), (2, 2, 5), (6, 2, 5), (2, 2, 5), (2, 2, 5)])
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


GRU_DESC, ZEROS = RNNDescriptor("gru", 3, 5), np.zeros(150, np.float32)
OF_WEIGHTS = "GRU.from_descriptor: weights | (num_weights=150,) | (3,)"
INDRNN = RNNDescriptor(cells.IndRNN, 3, 5)
FIRST = "LSTM: batch_first | False | True | (T, N, I) | numpy.swapaxes(x, 0, 1)"
OTHER_MODE = "from_descriptor: desc.mode"
REFUSED = [
    (lambda: LSTM.from_descriptor(GRU_DESC), ValueError, f"LSTM.{OTHER_MODE} | LSTM | 'gru' | Network.from_descriptor"),
    (lambda: RNN.from_descriptor(INDRNN), ValueError, f"RNN.{OTHER_MODE} | RNN | IndRNN | Network.from_descriptor"),
    (lambda: GRU.from_descriptor(GRU_DESC, np.zeros(3, "f4")), ValueError, OF_WEIGHTS),
    (lambda: GRU.from_descriptor(GRU_DESC, ZEROS, seed=1), ValueError, "GRU.from_descriptor: seed | None | 1"),
    (lambda: GRU(3, 5).astype("int8"), ValueError, "RNNDescriptor: dtype | float32 | 'int8'"),
    (lambda: LSTM(3, 5, batch_first=True), ValueError, FIRST),
    (lambda: RNN(3, 5, nonlinearity="sigmoid"), ValueError, "RNN: nonlinearity | tanh | relu | 'sigmoid'"),
    (lambda: GRU.from_descriptor("gru"), TypeError, "GRU.from_descriptor: desc | RNNDescriptor | str"),
    (lambda: GRU(3, 5).to("cupy"), TypeError, "GRU.to: library | numpy | cupy | str"),
    (lambda: LSTM(3, 5, batch_first=1), TypeError, "LSTM: batch_first | bool | int"),
    (lambda: GRU(3, 5, nonlinearity="tanh"), TypeError, "GRU: nonlinearity | 'tanh' | RNN"),
    (lambda: LSTM(3, 5, proj_size=False), TypeError, "RNNDescriptor: proj_size | int | bool"),
    (lambda: LSTM(3, 5, proj_size=0.0), TypeError, "RNNDescriptor: proj_size | int | float"),
    (lambda: LSTM(3, 5, proj_size=np.zeros(2)), TypeError, "RNNDescriptor: proj_size | int | numpy.ndarray"),
]


@pytest.mark.parametrize(("make", "kind", "text"), REFUSED)
def test_wrong_arguments_of_networks_are_refused(make, kind, text):
    with raises(kind, text):
        make()


def test_options_of_pytorch_are_accepted():
    assert LSTM(3, 5, bias=True, batch_first=False, proj_size=0).desc == RNNDescriptor("lstm", 3, 5)
    assert RNN(3, 5, bias=np.False_).desc == RNNDescriptor("rnn_tanh", 3, 5, bias="none")


def test_equality():
    net = LSTM(3, 5, seed=0)
    assert net == LSTM(3, 5, seed=0) and net != LSTM(3, 5, seed=1) and net != "a network"
    assert net != LSTM(3, 5, bias="input", seed=0) and net != Network("lstm", 3, 5, seed=0)
    net.weights[0] = np.nan
    assert net == net.copy()
    net.weights[0] = 0.0
    other = net.copy()
    other.weights[0] = -0.0
    assert net != other
    other = net.copy()
    other.arrays["b"] = np.zeros(3)
    assert net != other and other != net
    net.arrays["b"] = np.zeros(3, np.float32)
    assert net != other
    with pytest.raises(TypeError, match="unhashable"):
        hash(net)


def assert_apart(one, other):
    """Equal, and without common memory."""
    assert one == other and type(one) is type(other)
    assert not np.shares_memory(one.weights, other.weights)
    assert not any(np.shares_memory(array, other.arrays[name]) for name, array in one.arrays.items())


@pytest.mark.parametrize("again", [lambda net: net.copy(), copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
@of_each_kind
def test_copies_share_no_memory(make, desc, again):
    net = make()
    net.arrays["readout"] = np.arange(3)
    assert_apart(again(net), net)


def test_extra_array_may_be_a_list():
    net = LSTM(3, 5, seed=0)
    net.arrays["words"] = ["a", "b"]
    for other in (net.copy(), net.astype("float64"), net.to(np)):
        assert other.arrays["words"].tolist() == ["a", "b"]
    assert net == net.copy()


def test_astype_converts_the_weights_alone():
    net = LSTM(3, 5, allow_tf32=True, seed=0)
    net.arrays["readout"] = np.arange(3)
    wide = net.astype("float64")
    assert wide.desc == RNNDescriptor("lstm", 3, 5, dtype="float64") and wide.dtype == np.float64
    np.testing.assert_array_equal(wide.weights, net.weights)
    assert wide.arrays["readout"] is not net.arrays["readout"] and wide.arrays["readout"].dtype == np.int64
    assert_apart(net.astype(np.float32), net)
    wide.weights[0] = 1e300
    assert np.isinf(wide.astype("float32").weights[0])
    assert net.astype("float16").weights.dtype == np.float16


def test_network_on_the_host_is_not_moved_there():
    net = LSTM(3, 5, seed=0)
    moved = net.to(np)
    assert moved == net and moved is not net and moved.weights is net.weights


def test_copied_plan_has_the_packed_weights():
    net = LSTM(3, 5, 2, True, **PROJECTED, seed=4)
    x = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(net.dtype)
    plan, expected = net.prepare(), net.infer(x)
    net.weights[:] = 0
    for again in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan)), pickle.loads(pickle.dumps(copy.copy(plan)))):
        assert again.desc == net.desc
        assert_same_results(again.infer(x), expected, OUTPUTS)


@of_each_kind
def test_saved_network_is_loaded_and_can_be_trained(make, desc, tmp_path):
    """With its extra arrays, and those given."""
    net, readout = make(), np.random.default_rng(0).normal(size=(2, 5))
    net.weights[3] = np.nan
    net.arrays = {"readout": np.zeros(1), "words": np.array(["a", "bc"])}
    other_order = np.asfortranarray(readout)
    given = dict(readout=readout, file=np.array(True), allow_pickle=3, order=other_order, empty=readout[:0])
    net.save(tmp_path / "model", **given)
    own = {"cell": own_cells.Independent} if isinstance(desc.mode, own_cells.Independent) else {}
    found = load(str(tmp_path / "model"), **own)
    assert type(found) is type(net) and found.desc == desc and found.weights.tobytes() == net.weights.tobytes()
    assert list(found.arrays) == ["readout", "words", *list(given)[1:]]
    for name, array in (net.arrays | given).items():
        assert np.array_equal(found.arrays[name], array) and found.arrays[name].dtype == np.asarray(array).dtype
    assert "readout, words" in repr(found)
    found.save(tmp_path / "again")
    assert load(tmp_path / "again", **own) == found
    found.views["bias_ih_l0" if "bias_ih_l0" in found.views else "weight_ih_l0"][:] = 3
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


ARRAYS_REFUSED = [
    ({"weights": np.zeros(3)}, ValueError, "weights | format, descriptor, weights"),
    ({"a": np.array([None])}, TypeError, "a | numbers | text | object"),
    ({"a": np.array("2026", "M8[Y]")}, TypeError, "a | numbers | datetime64[Y]"),
    ({"a": np.zeros(2, [("x", "f4")])}, TypeError, "a | numbers | x"),
    ({"a": [[1], [2, 3]]}, ValueError, "a | array"),
    ({"a": np.ma.zeros(3)}, TypeError, "a | array | numpy.ma.MaskedArray"),
]


@pytest.mark.parametrize(("arrays", "kind", "text"), ARRAYS_REFUSED)
def test_arrays_that_a_file_cannot_have_are_refused(arrays, kind, text, tmp_path):
    with raises(kind, f"save: {text}"):
        LSTM(3, 5).save(tmp_path / "model", **arrays)
    assert not list(tmp_path.iterdir())


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
    assert load(tmp_path / "net.npz") == net
