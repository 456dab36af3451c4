"""The language model around the engine: its gradient, its optimizer, its scores, its texts and its file."""

import itertools
import math
import sysconfig

import numpy as np
import pytest
from gradcheck import assert_gradients
from tolerances import assert_close

import rnnkit
from rnnkit.language_model import corpus, scoring
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.model import Parameters, State, TextModel

BLOCKS = ("embedding", "network", "output_weight", "output_bias")


def small_model(mode="lstm", dtype="float64", num_layers=2, seed=0):
    return TextModel.random(rnnkit.RNNDescriptor(mode, 3, 4, num_layers, dtype=dtype), seed)


def bytes_of(seed, shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def naive_nats(model, data):
    """-ln p of every byte of data but the first, one step at a time and with the softmax written out."""
    state, nats = (None, None), []
    for byte, following in itertools.pairwise(data):
        x = model.parameters.embedding[[[byte]]]
        y, *state = rnnkit.infer(model.desc, model.parameters.network, x, *state)
        scores = model.parameters.output_weight @ y[0, 0] + model.parameters.output_bias
        nats.append(math.log(sum(math.exp(score) for score in scores)) - scores[following])
    return nats


def fixed_model(shares):
    """A model that gives byte b the probability shares[b], whatever came before."""
    model = small_model(num_layers=1)
    model.parameters.flat[:] = 0
    model.parameters.output_bias[:] = np.log(shares)
    return model


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_gradient_equals_central_differences(mode):
    model = small_model(mode)
    data = bytes_of(1, (6, 2)) % 7  # few bytes, so that each is seen more than once
    state = model.loss_and_gradient(data[:2], data[1:3])[1]
    seen = np.unique(data[2:5])

    def put(blocks):
        for name in BLOCKS[1:]:
            getattr(model.parameters, name)[:] = blocks[name]
        model.parameters.embedding[seen] = blocks["embedding"]

    def loss(blocks):
        put(blocks)
        return model.loss_and_gradient(data[2:5], data[3:6], state)[0]

    def gradients(blocks):
        loss(blocks)
        found = {name: getattr(model.gradient, name).copy() for name in BLOCKS}
        unseen = np.delete(found["embedding"], seen, axis=0)
        assert not unseen.any()
        return found | {"embedding": found["embedding"][seen]}

    start = {name: getattr(model.parameters, name).copy() for name in BLOCKS}
    start["embedding"] = start["embedding"][seen]
    assert_gradients(loss, gradients, start, seed=2)


def test_loss_is_the_mean_over_the_bytes_and_the_state_goes_on():
    model = small_model()
    data = bytes_of(3, 7)
    first, state = model.loss_and_gradient(data[:3, None], data[1:4, None])
    second, _ = model.loss_and_gradient(data[3:6, None], data[4:7, None], state)
    expected = naive_nats(model, data)
    assert_close("first", first, np.mean(expected[:3]), "float64")
    assert_close("second", second, np.mean(expected[3:]), "float64")


def test_parts_of_a_batch_add_up_to_its_gradient():
    model = small_model()
    inputs, targets = bytes_of(8, (5, 3)) % 3, bytes_of(9, (5, 3))
    state = model.add_gradient(inputs, targets, count=15)[1]
    model.gradient.flat.fill(0)
    whole, _ = model.add_gradient(inputs, targets, state, count=15)
    expected = model.gradient.flat.copy()
    model.gradient.flat.fill(0)
    nats = 0.0
    for part in (slice(0, 2), slice(2, 3)):
        own = State(state.hx[:, part], state.cx[:, part])
        nats += model.add_gradient(inputs[:, part], targets[:, part], own, count=15)[0]
    assert_close("nats", nats, whole, "float64")
    assert_close("gradient", model.gradient.flat, expected, "float64")


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_weight_decay_acts_on_matrices_and_on_no_bias(mode):
    model = small_model(mode)
    parts = model.decayed
    assert [part.start for part, _ in parts] == [0, *(part.stop for part, _ in parts[:-1])]
    assert parts[-1][0].stop == model.parameters.flat.size
    for part, acts in parts:
        model.parameters.flat[part] = acts
    matrices = rnnkit.weight_views(model.desc, model.parameters.network)
    for name, view in (*matrices.items(), *((name, getattr(model.parameters, name)) for name in BLOCKS[::2])):
        assert np.all(view == (view.ndim == 2)), name
    assert not model.parameters.output_bias.any()


def test_parameters_are_views_that_fill_the_buffer():
    desc = rnnkit.RNNDescriptor("gru", 3, 4)
    parameters = Parameters(desc)
    assert parameters.flat.size == 256 * 3 + rnnkit.num_weights(desc) + 256 * 4 + 256
    for value, name in enumerate(BLOCKS, 1):
        getattr(parameters, name)[:] = value
    assert [int(value) for value, _ in itertools.groupby(parameters.flat)] == [1, 2, 3, 4]


def test_softmax_loss_by_hand():
    scores = np.array([[0.0, math.log(3.0)], [1e4, 0.0], [-1e4, -1e4]])
    nats = textmodel.softmax_loss(scores, np.array([0, 0, 1]))
    assert_close("probabilities", scores, np.array([[0.25, 0.75], [1, 0], [0.5, 0.5]]), "float64")
    assert_close("nats", nats, np.array([math.log(4), 0, math.log(2)]), "float64")


def test_split_keeps_every_byte_in_one_part():
    expected = (0, 0, 0), (19, 0, 0), (20, 0, 1), (1000, 12, 50), (6_000_000, 1 << 16, 1 << 18)
    for size, validation, held_out in expected:
        text = bytes_of(5, size).tobytes()
        parts = corpus.split(text)
        assert b"".join(parts) == text
        assert (len(parts.validation), len(parts.held_out)) == (validation, held_out)


def test_batches_go_on_row_by_row():
    text = bytes(range(2 * 8 + 1))
    rows = corpus.rows(text, batch_size=2, seq_len=3)
    found = [corpus.batch(rows, 3, number) for number in range(3)]
    assert corpus.num_batches(rows, 3) == 2
    assert [batch[0].T.tolist() for batch in found[:2]] == [[[0, 1, 2], [8, 9, 10]], [[3, 4, 5], [11, 12, 13]]]
    assert [batch[1].T.tolist() for batch in found[:2]] == [[[1, 2, 3], [9, 10, 11]], [[4, 5, 6], [12, 13, 14]]]
    assert [batch[2] for batch in found] == [True, False, True]
    assert np.array_equal(found[2][0], found[0][0])


def test_shortest_text_has_one_batch_and_a_shorter_one_none():
    rows = corpus.rows(bytes(8), batch_size=2, seq_len=3)
    _, targets, first = corpus.batch(rows, 3, 0)
    assert corpus.num_batches(rows, 3) == 1
    assert targets.shape == (3, 2)
    assert first
    expected = r"rows: text must have at least batch_size\*\(seq_len\+1\)=8 bytes to train on, got 7; give more text"
    with pytest.raises(ValueError, match=expected):
        corpus.rows(bytes(7), batch_size=2, seq_len=3)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000, 64 * 256 + 1, 40_000])
@pytest.mark.parametrize("seq_len", [100, 1000])
def test_held_out_bits_count_every_byte_once(size, seq_len):
    rng = np.random.default_rng(size)
    shares = rng.dirichlet(np.ones(256))
    text = bytes_of(size, size)
    bits = scoring.held_out_bits(fixed_model(shares), text.tobytes(), b"before", seq_len=seq_len)
    assert_close("bits", bits, -np.log2(shares[text]).mean(), "float64")


def test_held_out_bits_equal_a_step_by_step_reading():
    model = small_model()
    text, before = bytes_of(6, 40).tobytes(), b"xyz"
    expected = np.mean(naive_nats(model, before[-1:] + text)) / math.log(2)
    assert_close("bits", scoring.held_out_bits(model, text, before, seq_len=7), expected, "float64")


def test_order0_bits_by_hand():
    assert corpus.order0_bits(b"aaaa") == 0
    assert corpus.order0_bits(b"abab") == 1
    assert corpus.order0_bits(bytes(range(256)) * 3) == 8
    assert corpus.order0_bits(b"aaab") == pytest.approx(0.75 * math.log2(4 / 3) + 0.25 * 2)


def test_compressors_see_repetition_and_lzma_the_context():
    noise = bytes_of(7, 20_000).tobytes()
    # Noise costs its 8 bits and a block header or two of at most 64 bytes; a repetition next to nothing.
    assert 8 < corpus.zlib_bits(noise) < 8 + 8 * 64 / len(noise)
    assert 8 < corpus.lzma_bits(noise) < 8 + 8 * 64 / len(noise)
    assert corpus.zlib_bits(b"a" * 20_000) < 0.1
    assert corpus.lzma_bits(noise, context=noise) < 0.2  # a match of LZMA has 273 bytes at most
    assert corpus.lzma_bits(noise, context=noise[::-1]) >= 8


def test_lzma_remembers_a_context_larger_than_its_preset_dictionary():
    noise = bytes_of(8, 20_000).tobytes()
    assert corpus.lzma_bits(noise, context=noise + bytes(9 << 20)) < 0.2


def test_library_source_is_python_text_in_a_fixed_order():
    text = corpus.library_source(50_000)
    assert len(text) == 50_000
    assert corpus.library_source(60_000).startswith(text)
    future = f"{sysconfig.get_path('stdlib')}/__future__.py"
    assert text.startswith(corpus.read_files([future]))


@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_generate_at_zero_temperature_takes_the_likeliest_byte(mode):
    model = small_model(mode)
    prompt = b"ab"
    read = list(prompt)
    for byte in itertools.islice(textmodel.generate(model, prompt, 0.0), 10):
        x = model.parameters.embedding[read][:, None]
        y = rnnkit.infer(model.desc, model.parameters.network, x).y[-1]
        assert byte == model.scores(y)[0].argmax()
        read.append(byte)


def test_generate_draws_from_the_distribution():
    shares = np.full(256, 1e-9)
    shares[[65, 66]] = 0.75, 0.25
    model = fixed_model(shares)
    drawn = list(itertools.islice(textmodel.generate(model, b"x", 1.0, seed=0), 2000))
    # Four standard deviations of a binomial: 4 * sqrt(2000 * 0.75 * 0.25) = 77.
    assert abs(drawn.count(65) - 1500) < 77
    assert drawn.count(65) + drawn.count(66) == 2000
    assert drawn == list(itertools.islice(textmodel.generate(model, b"x", 1.0, seed=0), 2000))
    assert drawn != list(itertools.islice(textmodel.generate(model, b"x", 1.0, seed=1), 2000))


def test_saved_model_is_loaded_with_the_same_bits(tmp_path):
    model = small_model("gru", "float32")
    model.trained_with = {"steps": 7}
    model.save(tmp_path / "model")
    loaded = textmodel.load(tmp_path / "model")
    assert loaded.desc == model.desc
    assert loaded.trained_with == {"steps": 7}
    assert loaded.parameters.flat.tobytes() == model.parameters.flat.tobytes()
    assert rnnkit.load(tmp_path / "model").weights.tobytes() == model.parameters.network.tobytes()


def test_load_refuses_another_file(tmp_path):
    path = tmp_path / "model.npz"
    rnnkit.LSTM(3, 4).save(path)
    with pytest.raises(ValueError, match="load: path .* must hold embedding, .*, got no embedding"):
        textmodel.load(path)

    model = small_model()
    model.save(path)
    with np.load(path) as file:
        contents = dict(file)
    np.savez(path, **contents | {"embedding": np.zeros((256, 5))})
    expected = r"must hold embedding of dtype float64 and shape \(256, 3\), got dtype float64 and shape \(256, 5\)"
    with pytest.raises(ValueError, match=expected):
        textmodel.load(path)


@pytest.mark.parametrize(("changes", "text"), [
    ({"trained_with": "[]"}, "must hold trained_with as a JSON object, got list"),
    ({"trained_with": "{"}, "must hold trained_with as JSON, got Expecting property name"),
    ({"trained_with": np.zeros(3)}, "must hold trained_with as one text of at most 4194304 characters, got dtype"),
    ({"embedding": np.zeros(768)}, r"must hold embedding of .* shape \(256, 3\), got dtype float64 and shape \(768,\)"),
    ({"output_bias": np.zeros(256, "f4")}, r"must hold output_bias of dtype float64 .* got dtype float32"),
])
def test_load_refuses_other_members(changes, text, tmp_path):
    small_model().save(tmp_path / "model")
    with np.load(tmp_path / "model") as file:
        np.savez(tmp_path / "model.npz", **dict(file) | changes)
    with pytest.raises(ValueError, match=rf"\Aload: path '{tmp_path / 'model.npz'}' {text}"):
        textmodel.load(tmp_path / "model.npz")


def test_load_refuses_a_network_of_two_directions(tmp_path):
    TextModel.random(rnnkit.RNNDescriptor("gru", 3, 4, bidirectional=True), 0).save(tmp_path / "model")
    with pytest.raises(ValueError, match="must hold a network of one direction and of dtype float32 or float64, got"):
        textmodel.load(tmp_path / "model")


def test_generate_refuses_scores_that_are_not_numbers():
    model = small_model()
    model.parameters.network[:] = np.nan
    with pytest.raises(ValueError, match="generate: model must give scores that are numbers, got NaN; train it anew"):
        next(textmodel.generate(model, b"x", 0.0))


def test_a_byte_that_is_ruled_out_is_no_error():
    shares = np.full(256, 1e-9)
    shares[65] = 1.0
    model = fixed_model(shares)
    model.parameters.output_bias[66:] = -np.inf
    assert list(itertools.islice(textmodel.generate(model, b"x", 0.5, seed=0), 3)) == [65, 65, 65]
