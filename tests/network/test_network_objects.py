"""Networks as objects: made of descriptors, copied, compared, pickled, moved; files of whole models."""

import copy
import pickle

import numpy as np
import own_cells
import pytest
from combinations import nightly
from messages import raises

import rnnkit
from rnnkit import GRU, LSTM, RNN, Network, RNNDescriptor, cells, load, prepare

DESCRIPTORS = [
    RNNDescriptor("lstm", 3, 5, 2, True, proj_size=2, cell_clip=(-1, 1), dropout=0.5),
    RNNDescriptor("gru", 3, 5, reset_after=False, dtype="float64"),
    RNNDescriptor("rnn_relu", 3, 5, bias="none"),
    RNNDescriptor(cells.PeepholeLSTM(candidate=cells.Softsign()), 3, 5),
    RNNDescriptor(own_cells.Independent(scale=2), 3, 5),
]
KINDS = [LSTM, GRU, RNN, Network, Network]


@pytest.fixture(params=range(len(DESCRIPTORS)), ids=[repr(desc.mode) for desc in DESCRIPTORS])
def net(request):
    return KINDS[request.param].from_descriptor(DESCRIPTORS[request.param], seed=3)


def assert_apart(one, other):
    """Equal, and without common memory."""
    assert one == other and type(one) is type(other)
    assert not np.shares_memory(one.weights, other.weights)
    one.views["weight_ih_l0"][0, 0] += 1
    assert one != other


def test_from_descriptor_makes_the_same_network(net):
    desc = net.desc
    np.testing.assert_array_equal(net.weights, rnnkit.init_weights(desc, seed=3))
    given = type(net).from_descriptor(desc, net.weights)
    assert given.weights is net.weights and given == net
    sizes = net.mode, net.input_size, net.hidden_size, net.num_layers, net.num_directions
    assert sizes == (desc.mode, 3, 5, desc.num_layers, desc.num_directions)
    assert net.output_size == desc.output_size and net.dtype == desc.np_dtype
    assert net.num_parameters == net.weights.size == rnnkit.num_weights(desc)
    assert Network.from_descriptor(desc, seed=3).desc == desc


class Subclass(LSTM):
    pass


def test_from_descriptor_of_a_subclass_makes_a_subclass():
    net = Subclass.from_descriptor(RNNDescriptor("lstm", 3, 5), seed=0)
    assert type(net) is type(net.copy()) is Subclass and net != LSTM(3, 5, seed=0)


GRU_DESC, ZEROS = RNNDescriptor("gru", 3, 5), np.zeros(150, np.float32)
OF_WEIGHTS = "GRU.from_descriptor: weights | (num_weights=150,) | (3,)"
INDRNN = RNNDescriptor(cells.IndRNN, 3, 5)
CLIPPED = 'RNNDescriptor: cell_clip | None | mode="rnn_tanh" | (-1.0, 1.0) | mode="lstm"'
NO_RESET = 'RNNDescriptor: reset_after | True | mode="lstm" | False | mode="gru"'
FIRST = "LSTM: batch_first | False | True | (T, N, I) | numpy.swapaxes(x, 0, 1)"
OTHER_MODE = "from_descriptor: desc.mode"
REFUSED = [
    (lambda: LSTM.from_descriptor(GRU_DESC), ValueError, f"LSTM.{OTHER_MODE} | LSTM | 'gru' | Network.from_descriptor"),
    (lambda: RNN.from_descriptor(INDRNN), ValueError, f"RNN.{OTHER_MODE} | RNN | IndRNN | Network.from_descriptor"),
    (lambda: GRU.from_descriptor(GRU_DESC, np.zeros(3, "f4")), ValueError, OF_WEIGHTS),
    (lambda: GRU.from_descriptor(GRU_DESC, ZEROS, seed=1), ValueError, "GRU.from_descriptor: seed | None | 1"),
    (lambda: GRU(3, 5).astype("int8"), ValueError, "RNNDescriptor: dtype | float32 | 'int8'"),
    (lambda: LSTM(3, 5, batch_first=True), ValueError, FIRST),
    (lambda: GRU(3, 5, proj_size=2), ValueError, 'RNNDescriptor: proj_size | None | mode="gru" | 2 | mode="lstm"'),
    (lambda: RNN(3, 5, cell_clip=(-1, 1)), ValueError, CLIPPED),
    (lambda: LSTM(3, 5, reset_after=False), ValueError, NO_RESET),
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


@pytest.mark.parametrize("again", [lambda net: net.copy(), copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_share_no_memory(net, again):
    net.arrays["readout"] = np.arange(3)
    other = again(net)
    assert not np.shares_memory(other.arrays["readout"], net.arrays["readout"])
    assert_apart(other, net)


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


def test_network_on_the_host_is_not_moved_there(net):
    moved = net.to(np)
    assert moved == net and moved is not net and moved.weights is net.weights


@pytest.mark.parametrize("name", ["RNNDescriptor", "LSTM", "GRU", "RNN", "Network"])
def test_classes_pickled_by_0_10_are_found(name):
    module = "descriptor" if name == "RNNDescriptor" else "network"
    assert pickle.loads(f"crnnkit.{module}\n{name}\n.".encode()) is getattr(rnnkit, name)


@pytest.mark.parametrize("net", [0, nightly(1), nightly(2), nightly(3), 4], indirect=True)
def test_copied_plan_has_the_packed_weights(net):
    plan = prepare(net.desc, net.weights)
    before = net.weights.copy()
    net.weights[:] = 0
    x = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(net.dtype)
    expected = rnnkit.infer(net.desc, before, x)
    for again in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan)), pickle.loads(pickle.dumps(copy.copy(plan)))):
        assert again.desc == net.desc
        found = again.infer(x)
        assert np.array_equal(found.y, expected.y) and np.array_equal(found.hy, expected.hy)


def test_extra_arrays_are_saved_and_loaded(net, tmp_path):
    readout = np.random.default_rng(0).normal(size=(2, 5))
    net.arrays = {"readout": np.zeros(1), "words": np.array(["a", "bc"])}
    other_order = np.asfortranarray(readout)
    given = dict(readout=readout, file=np.array(True), allow_pickle=3, order=other_order, empty=readout[:0])
    net.save(tmp_path / "model", **given)
    own = {"cell": own_cells.Independent} if isinstance(net.mode, own_cells.Independent) else {}
    found = load(tmp_path / "model", **own)
    assert list(found.arrays) == ["readout", "words", *list(given)[1:]]
    for name, array in (net.arrays | given).items():
        assert np.array_equal(found.arrays[name], array) and found.arrays[name].dtype == np.asarray(array).dtype
    assert "readout, words" in repr(found)
    found.save(tmp_path / "again")
    assert load(tmp_path / "again", **own) == found
    with np.load(tmp_path / "again") as file:
        assert set(file.files) == {"format", "descriptor", "weights", "words", *given}


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


def test_text_model_survives_load_and_save(tmp_path):
    from rnnkit.language_model.model import TextModel
    from rnnkit.language_model.model import load as load_model

    model = TextModel.random(RNNDescriptor("lstm", 4, 5), 0, np.arange(65, 91, dtype=np.uint8))
    model.trained_with = {"steps": 3}
    model.save(tmp_path / "model")
    net = load(tmp_path / "model")
    np.testing.assert_array_equal(net.arrays["embedding"], model.parameters.embedding)
    net.save(tmp_path / "again")
    again = load_model(tmp_path / "again")
    np.testing.assert_array_equal(again.parameters.flat, model.parameters.flat)
    assert again.trained_with == model.trained_with and np.array_equal(again.alphabet, model.alphabet)
