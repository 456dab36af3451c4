"""The language model around the engine: its gradient and its file."""

import numpy as np
import pytest
from combinations import nightly
from gradcheck import assert_gradients
from language_models import bytes_of, small_model
from messages import says
from tolerances import assert_close

import rnnkit
from rnnkit import training
from rnnkit.cells import AUGRU
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.model import TextModel
from rnnkit_kernels.machine.thread_pool import thread_override

BLOCKS = ("embedding", "network", "output_weight", "output_bias")


@pytest.mark.parametrize("alphabet", [range(256), [0, 2, 3, 5, 6]])
@pytest.mark.parametrize(
    ("mode", "num_layers", "dropout"),
    [("lstm", 2, 0.0), ("gru", 2, 0.0), ("rnn_tanh", 2, 0.0), nightly("lstm", 1, 0.5), ("lstm", 2, 0.5)],
)
def test_gradient_equals_central_differences(mode, num_layers, dropout, alphabet):
    model = small_model(mode, num_layers=num_layers, dropout=dropout, alphabet=alphabet)
    data = bytes_of(1, (6, 2)) % 7  # few bytes, so that each is seen more than once, those outside the alphabet too
    state = model.add_gradient(data[:2], data[1:3], count=1, seed=1)[1]
    letters = list(model.alphabet)
    seen = np.unique([letters.index(byte) if byte in letters else len(letters) for byte in data[2:5].ravel()])

    def put(blocks):
        for name in BLOCKS[1:]:
            getattr(model.parameters, name)[:] = blocks[name]
        model.parameters.embedding[seen] = blocks["embedding"]

    def loss(blocks):
        put(blocks)
        model.gradient.flat.fill(0)
        return model.add_gradient(data[2:5], data[3:6], state, count=6, seed=2)[0] / 6

    def gradients(blocks):
        loss(blocks)
        found = {name: getattr(model.gradient, name).copy() for name in BLOCKS}
        unseen = np.delete(found["embedding"], seen, axis=0)
        assert not unseen.any()
        return found | {"embedding": found["embedding"][seen]}

    start = {name: getattr(model.parameters, name).copy() for name in BLOCKS}
    start["embedding"] = start["embedding"][seen]
    assert_gradients(loss, gradients, start, seed=2)


def test_batch_gradient_is_deterministic_and_the_sum_of_its_rows():
    model = small_model("gru", "float64")
    inputs, targets = bytes_of(10, (37, 17)), bytes_of(11, (37, 17))  # five blocks of rows, the last not full
    found = []
    for size in (1, 2, 3):
        model.gradient.flat.fill(0)
        with thread_override(size):
            nats, _ = model.add_gradient(inputs, targets, count=37 * 17)
        found.append((nats, model.gradient.flat.tobytes()))
    assert len(set(found)) == 1
    whole = model.gradient.flat.copy()
    model.gradient.flat.fill(0)
    for column in range(17):
        part = slice(column, column + 1)
        nats -= model.add_gradient(inputs[:, part], targets[:, part], count=37 * 17)[0]
    assert abs(nats) < 1e-9
    assert_close("gradient", model.gradient.flat, whole, "float64")


def test_dropout_acts_on_the_readout_and_follows_the_seed():
    model = small_model(dtype="float32", num_layers=1, dropout=0.25)
    inputs, targets = bytes_of(12, (40, 50)), bytes_of(13, (40, 50))
    nats = [model.add_gradient(inputs, targets, count=1, seed=seed)[0] for seed in (3, 3, 4)]
    assert nats[0] == nats[1] != nats[2]
    model.gradient.flat.fill(0)
    model.add_gradient(inputs[:1, :1], targets[:1, :1], count=1, seed=9)
    kept = training.dropout_mask((1, 1, model.desc.hidden_size), 0.25, seed=9)[0, 0] > 0
    assert not kept.all()
    np.testing.assert_array_equal((model.gradient.output_weight != 0).any(axis=0), kept)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_weight_decay_acts_on_matrices_and_on_no_bias(mode):
    model = small_model(mode)
    parts = model.weight_decay_groups
    assert [part.start for part, _ in parts] == [0, *(part.stop for part, _ in parts[:-1])]
    assert parts[-1][0].stop == model.parameters.flat.size
    for part, acts in parts:
        model.parameters.flat[part] = acts
    matrices = rnnkit.weight_views(model.desc, model.parameters.network)
    for name, view in (*matrices.items(), *((name, getattr(model.parameters, name)) for name in BLOCKS[::2])):
        assert np.all(view == (view.ndim == 2)), name
    assert not model.parameters.output_bias.any()


def test_saved_model_is_loaded_with_the_same_bits(tmp_path):
    model = small_model("gru", "float32", alphabet=[0, 3, 255])
    model.trained_with = {"steps": 7}
    model.save(tmp_path / "model")
    loaded = textmodel.load(tmp_path / "model")
    assert loaded.desc == model.desc
    assert loaded.trained_with == {"steps": 7}
    assert loaded.alphabet.tolist() == [0, 3, 255]
    assert loaded.parameters.flat.tobytes() == model.parameters.flat.tobytes()
    assert rnnkit.load(tmp_path / "model").weights.tobytes() == model.parameters.network.tobytes()


def test_overflow_of_an_embedding_gradient_warns_of_nothing():
    """Of NumPy, which adds them: a model that learns may meet any weights."""
    model = small_model("rnn_tanh", "float32", num_layers=1)
    model.parameters.flat[:] = 0
    rnnkit.weight_views(model.desc, model.parameters.network)["weight_ih_l0"][:] = 1
    model.parameters.output_weight[1:3] = [[3e38], [-3e38]]
    model.add_gradient(np.full((1, 2), 7, np.uint8), np.array([[1, 2]], np.uint8), count=1)  # -inf and inf
    assert np.isnan(model.gradient.embedding[7]).all()
    assert not np.delete(model.gradient.embedding, 7, axis=0).any()


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"embedding": None}, ["no embedding"]),
        ({"alphabet": None}, ["no alphabet"]),  # as version 0.4 wrote it
        ({"trained_with": "[]"}, ["trained_with", "JSON object", "list"]),
        ({"trained_with": "{"}, ["trained_with", "JSON", "Expecting property name"]),
        ({"trained_with": np.zeros(3)}, ["trained_with", 4194304, "float64", (3,)]),
        ({"embedding": np.zeros(768)}, ["embedding", "float64", (257, 3), (768,)]),
        ({"alphabet": np.zeros(0, "u1")}, ["alphabet", "uint8", "(1..256,)", (0,)]),
        ({"alphabet": np.zeros(257, "u1")}, ["alphabet", "uint8", "(1..256,)", (257,)]),
        ({"alphabet": np.arange(256)}, ["alphabet", "uint8", "int64"]),
        ({"alphabet": np.array([1, 3, 3], "u1")}, ["alphabet", "ascending order"]),
        ({"alphabet": np.array([3], "u1")}, ["embedding", "float64", (2, 3), (257, 3)]),
        ({"output_bias": np.zeros(257, "f4")}, ["output_bias", "float64", "float32"]),
    ],
)
def test_load_refuses_other_members(changes, facts, tmp_path):
    small_model().save(tmp_path / "model")
    with np.load(tmp_path / "model") as file:
        members = dict(file) | changes
    np.savez(tmp_path / "model.npz", **{name: value for name, value in members.items() if value is not None})
    with pytest.raises(ValueError, match=says(f"load: path '{tmp_path / 'model.npz'}'", *facts)):
        textmodel.load(tmp_path / "model.npz")


@pytest.mark.parametrize("kind", [dict(mode="gru", bidirectional=True), dict(mode=AUGRU())])
def test_load_refuses_two_directions_and_side_inputs(kind, tmp_path):
    desc = rnnkit.RNNDescriptor(input_size=3, hidden_size=4, **kind)
    TextModel.random(desc, 0).save(tmp_path / "model")
    facts = "one direction", "side inputs", repr(desc)
    with pytest.raises(ValueError, match=says(f"load: path '{tmp_path / 'model'}'", *facts)):
        textmodel.load(tmp_path / "model")
