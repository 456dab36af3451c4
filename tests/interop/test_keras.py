"""from_keras and to_keras, against Keras 3 on its torch backend."""

import os

import numpy as np
import pytest
from foreign import assert_outputs, assert_same_bits, assert_same_network, net_of, problem_of
from messages import says
from refused import refusals
from tolerances import assert_close

import rnnkit
from rnnkit.interop import from_keras, to_keras

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras

# Of Keras itself, where it makes arrays of its variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

GRU, LSTM, SimpleRNN = keras.layers.GRU, keras.layers.LSTM, keras.layers.SimpleRNN
Bidirectional = keras.layers.Bidirectional
CELLS = {
    "tanh": (SimpleRNN, {}, dict(mode="rnn_tanh", bias="input")),
    "relu": (SimpleRNN, dict(activation="relu"), dict(mode="rnn_relu", bias="input")),
    "lstm": (LSTM, {}, dict(mode="lstm", bias="input")),
    "gru": (GRU, {}, dict(mode="gru")),
    "gru-reset-before": (GRU, dict(reset_after=False), dict(mode="gru", reset_after=False, bias="input")),
}


def make_layers(cell, bidirectional=False, num_layers=2, **options):
    """Built layers, each with weights that differ from one another."""
    cls, own, _ = CELLS[cell]
    rng, size, layers = np.random.default_rng(0), 7, []
    for _ in range(num_layers):
        layer = cls(5, return_sequences=True, return_state=True, **own, **options)
        layer = Bidirectional(layer) if bidirectional else layer
        layer.build((None, None, size))
        layer.set_weights([0.5 * rng.standard_normal(w.shape).astype(w.dtype) for w in layer.get_weights()])
        layers.append(layer)
        size = 10 if bidirectional else 5
    return layers


def run_keras(layers, problem, mask=None):
    """y and the last states of a stack of layers, batch-major inside."""
    y, last = problem.x.swapaxes(0, 1), []
    states = [state for state in (problem.hx, problem.cx) if state is not None]
    for layer in range(problem.num_layers):
        rows = range(layer * problem.directions, (layer + 1) * problem.directions)
        y, *found = layers[layer](y, initial_state=[state[row] for row in rows for state in states], mask=mask)
        last += found
    last = [keras.ops.convert_to_numpy(state) for state in last]
    return keras.ops.convert_to_numpy(y).swapaxes(0, 1), [np.stack(last[n :: len(states)]) for n in range(len(states))]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_mask_skips_the_same_steps(cell, bidirectional):
    """On PyTorch Keras has zeros before the first step that runs: here the first and last run. Bidirectional has zeros
    at all skipped steps."""
    layers = make_layers(cell, bidirectional)
    problem = problem_of(**CELLS[cell][2], bidirectional=bidirectional, dtype="float32")
    mask = np.random.default_rng(0).random((problem.seq_len, problem.batch_size)) < 0.4
    mask[0] = mask[-1] = True
    found = from_keras(layers).infer(problem.x, problem.hx, problem.cx, mask=mask)
    y, states = run_keras(layers, problem, mask.T)
    y = np.where(mask[:, :, None], y, found.y) if bidirectional else y
    for expected, name in zip((y, *states), ("y", "hy", "cy"), strict=False):
        assert_close(name, getattr(found, name), expected, "float32")
    assert not mask.all()


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cell", CELLS)
def test_layers_become_their_network(cell, dtype, bidirectional, use_bias):
    layers = make_layers(cell, bidirectional, use_bias=use_bias, dtype=dtype)
    fields = {**CELLS[cell][2], **({} if use_bias else {"bias": "none"})}
    problem = problem_of(**fields, bidirectional=bidirectional, dtype=dtype)
    net = from_keras(layers)
    assert net.desc == problem.desc
    # As float32: on PyTorch, Keras's product of two float64 matrices is rounded to that.
    assert_outputs(net, problem, *run_keras(layers, problem), "float32")
    weights, arrays = [layer.get_weights() for layer in layers], to_keras(net)
    for number, (theirs, ours) in enumerate(zip(weights, arrays, strict=True)):
        for name, a, b in zip("kernel recurrent bias".split() * 2, theirs, ours, strict=False):
            assert_same_bits(f"{number} {name}", b, a)
        assert len(theirs) == len(ours)
    told = dict(activation="relu") if cell == "relu" else {}
    told |= dict(reset_after=False) if cell == "gru-reset-before" and not use_bias else {}
    assert_same_network(from_keras(weights, **told), net)
    assert_same_network(from_keras(layers[0]), from_keras(weights[0], **told))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", ["both", "input", "recurrent"])
@pytest.mark.parametrize("cell", CELLS)
def test_layers_take_a_network_with_any_biases(cell, bias, bidirectional):
    problem = problem_of(**{**CELLS[cell][2], "bias": bias}, bidirectional=bidirectional, dtype="float32")
    net, layers = net_of(problem), make_layers(cell, bidirectional)
    to_keras(net, layers)
    assert_outputs(net, problem, *run_keras(layers, problem))


def test_bias_keeps_its_bits_where_the_other_is_zero():
    net = rnnkit.LSTM(3, 2, seed=0)
    net.views["bias_ih_l0"][:4] = [-0.0, 1e-30, 0.0, -0.0]
    net.views["bias_hh_l0"][:4] = [0.0, 0.0, 1e-30, -0.0]
    assert_same_bits("bias", to_keras(net)[0][2][:4], np.array([-0.0, 1e-30, 1e-30, -0.0], "f4"))


def test_weights_are_copies():
    layer = make_layers("gru", num_layers=1)[0]
    net, before = from_keras(layer), layer.get_weights()[0]
    net.weights[:] = 3
    assert np.array_equal(layer.get_weights()[0], before)
    to_keras(net, layer)[0][0][:] = 4
    assert (net.weights == 3).all() and (layer.get_weights()[0] == 3).all()


def built(layer):
    layer.build((None, None, 7))
    return layer


def arrays_of(*shapes, dtype="f4"):
    return [np.zeros(shape, dtype) for shape in shapes]


class Own(LSTM):
    pass


@pytest.mark.parametrize("make", [lambda: GRU(5, dropout=0.5), lambda: LSTM(5, recurrent_dropout=0.5)])
def test_arrays_of_a_layer_with_dropout_are_taken(make):
    layer = built(make())
    assert_same_bits("kernel", to_keras(from_keras(layer.get_weights()))[0][0], layer.get_weights()[0])


@pytest.mark.parametrize(
    "merge", [np.add, np.multiply, lambda a, b: (a + b) / 2, None], ids=["sum", "mul", "ave", "None"]
)
def test_arrays_of_a_layer_that_merges_directions_give_both(merge, request):
    mode = None if merge is None else request.node.callspec.id
    layer = built(Bidirectional(LSTM(5, return_sequences=True), merge_mode=mode))
    net, x = from_keras(layer.get_weights()), np.random.default_rng(0).normal(size=(3, 4, 7)).astype("f4")
    found = np.split(net.infer(x.swapaxes(0, 1)).y.swapaxes(0, 1), 2, axis=-1)
    expected = layer(x)
    pairs = zip(found, expected, strict=True) if merge is None else [(merge(*found), expected)]
    for own, theirs in pairs:
        assert_close("y", own, keras.ops.convert_to_numpy(theirs), "float32")


def two_ways(forward, backward):
    return Bidirectional(forward, backward_layer=backward)


BACK = dict(go_backwards=True)
GRU_ARRAYS, RNN_ARRAYS = arrays_of((3, 6), (2, 6), (6,)), arrays_of((3, 2), (2, 2))
SOURCES = [  # the first ones compute something else than a network
    (lambda: built(LSTM(5, activation="relu")), "source.activation | tanh | relu"),
    (
        lambda: built(GRU(5, recurrent_activation="hard_sigmoid")),
        "source.recurrent_activation | sigmoid | hard_sigmoid",
    ),
    (lambda: built(SimpleRNN(5, activation="sigmoid")), "source.activation | tanh | relu | sigmoid"),
    (lambda: built(GRU(5, **BACK)), "source.go_backwards | False | True | Bidirectional"),
    (lambda: built(GRU(5, dropout=0.5)), "source.dropout | 0 | 0.5 | get_weights()"),
    (lambda: built(LSTM(5, recurrent_dropout=0.5)), "source.recurrent_dropout | 0 | 0.5 | get_weights()"),
    (lambda: built(Bidirectional(LSTM(5), merge_mode="sum")), "source.merge_mode | concat | sum | get_weights()"),
    (lambda: built(Bidirectional(LSTM(5), merge_mode=None)), "source.merge_mode | concat | None | get_weights()"),
    (
        lambda: built(two_ways(LSTM(5, **BACK), LSTM(5))),
        "source.forward_layer.go_backwards | False | True | Bidirectional",
    ),
    (
        lambda: built(two_ways(LSTM(5), GRU(5, **BACK))),
        "source.backward_layer.mode | lstm | source.forward_layer | gru",
    ),
    (
        lambda: built(two_ways(LSTM(5), LSTM(6, **BACK))),
        'source.backward_layer["kernel"] | (input_size=7, 4*hidden_size=20) | (7, 24)',
    ),
    (
        lambda: built(keras.layers.Dense(5)),
        "TypeError source | Keras | SimpleRNN | GRU | LSTM | Bidirectional | keras.src.layers.core.dense.Dense",
    ),
    (lambda: built(Own(5)), f"TypeError source | SimpleRNN | {__name__}"),
    (lambda: GRU(5), "source | weights | none | build"),
    (lambda: [built(GRU(7)), built(LSTM(7))], "source[1].mode | gru | source[0] | lstm"),
    (lambda: [built(GRU(7)), built(GRU(7, reset_after=False))], "source[1].reset_after | True | source[0] | False"),
    (lambda: [built(GRU(7)), built(GRU(7, use_bias=False))], "source[1].use_bias | True | source[0] | False"),
    (lambda: [built(GRU(7)), built(Bidirectional(GRU(7)))], "source[1].forward_layer | 1 | source[0] | 2"),
    (lambda: [built(GRU(5)), built(GRU(5))], 'source[1]["kernel"] | (input_size=5, 3*hidden_size=15) | (7, 15)'),
    (lambda: [built(GRU(7)), built(GRU(5))], 'source[1]["kernel"] | (input_size=7, 3*hidden_size=21) | (7, 15)'),
    (
        lambda: [built(GRU(7)), built(GRU(7, dtype="float64"))],
        'TypeError source[1]["kernel"] | float32 | source[0]["kernel"] | float64',
    ),
    (lambda: [built(GRU(7)), 3], "TypeError source[1] | Keras | int"),
    (lambda: "source", "TypeError source | Keras | list | str"),
    (lambda: [], "source | Keras | empty list"),
    (lambda: GRU_ARRAYS[:1], "source | 2 | 3 | (kernel, recurrent_kernel, bias) | Bidirectional | 1"),
    (
        lambda: arrays_of((3, 6), (2, 6), (6,), dtype="f2"),
        'TypeError source["recurrent_kernel"] | float32 | float64 | float16',
    ),
    (lambda: arrays_of((3, 6), (2,), (6,)), 'source["recurrent_kernel"] | (hidden_size, gates*hidden_size) | (2,)'),
    (lambda: arrays_of((3, 6), (2, 7), (6,)), 'source["recurrent_kernel"] | 2 | 6 | 8 | 1 | 3 | 4 | hidden_size=2 | 7'),
    (lambda: arrays_of((3, 6), (2, 6), (2, 5)), 'source["bias"] | (biases=2, 3*hidden_size=6) | (2, 5)'),
    (lambda: arrays_of((3, 6), (2, 6), (5,)), 'source["bias"] | (3*hidden_size=6,) | (5,)'),
    (lambda: arrays_of((6,), (2, 6)), 'source["kernel"] | (input_size, 3*hidden_size) | (6,)'),
    (lambda: [GRU_ARRAYS[:2], arrays_of((2, 6), (2, 6), (6,))], "source[1] | 3 | gru | unknown: bias"),
]
OPTIONS = [
    (lambda: from_keras(built(Bidirectional(GRU(5))), reset_after=True), "reset_after | layers | True"),
    (lambda: from_keras(built(SimpleRNN(5)), activation="tanh"), "activation | layers | tanh"),
    (lambda: from_keras(arrays_of((3, 8), (2, 8), (8,)), reset_after=False), 'reset_after | mode="lstm" | False'),
    (lambda: from_keras(GRU_ARRAYS, reset_after=False), "reset_after | bias | False"),
    (lambda: from_keras(GRU_ARRAYS[:2], activation="relu"), 'activation | mode="gru" | relu'),
    (lambda: from_keras(RNN_ARRAYS, activation="gelu"), "activation | tanh | relu | gelu"),
]
ONE_WAY = "float32 (7, 15), float32 (5, 15)"
TO_KERAS = [
    (lambda: (rnnkit.LSTM(7, 5, proj_size=2), None), "net.desc.proj_size | None | 2 | Keras"),
    (lambda: (rnnkit.LSTM(7, 5, cell_clip=(-1, 1)), None), "net.desc.cell_clip | None | (-1.0, 1.0) | Keras"),
    (lambda: (rnnkit.LSTM(5, 5, input_mode="skip"), None), "net.desc.input_mode | linear | skip | Keras"),
    (lambda: (rnnkit.GRU(7, 5, num_layers=2), [built(GRU(5))]), "layers | 2 | 1"),
    (lambda: (rnnkit.GRU(7, 5), built(LSTM(5))), "layers.mode | gru | lstm"),
    (lambda: (rnnkit.GRU(7, 5), built(GRU(5, reset_after=False))), "layers.reset_after | True | False"),
    (lambda: (rnnkit.GRU(7, 5), built(GRU(5, use_bias=False))), "layers.use_bias | True | False"),
    (lambda: (rnnkit.GRU(7, 5), built(GRU(5, dropout=0.5))), "layers.dropout | 0 | 0.5 | set_weights"),
    (
        lambda: (rnnkit.LSTM(7, 5, bidirectional=True), built(Bidirectional(LSTM(5), merge_mode="mul"))),
        "layers.merge_mode | concat | mul | set_weights",
    ),
    (lambda: (rnnkit.GRU(7, 5), built(GRU(5, **BACK))), "layers.go_backwards | False | True | Bidirectional"),
    (
        lambda: (rnnkit.GRU(7, 6, bias="none"), built(GRU(5, use_bias=False))),
        f"layers | float32 (7, 18), float32 (6, 18) | {ONE_WAY}",
    ),
    (
        lambda: (rnnkit.GRU(7, 5, bias="none"), built(GRU(5, use_bias=False, dtype="float64"))),
        f"layers | {ONE_WAY} | float64 (7, 15), float64 (5, 15)",
    ),
    (
        lambda: (rnnkit.GRU(7, 5, bias="none", bidirectional=True), built(GRU(5, use_bias=False))),
        f"layers | {ONE_WAY}, {ONE_WAY}",
    ),
    (lambda: (rnnkit.GRU(7, 5), [arrays_of((7, 15), (5, 15))]), "TypeError layers[0] | Keras | list"),
]


@refusals(
    from_keras=[*((lambda make=make: from_keras(make()), text) for make, text in SOURCES), *OPTIONS],
    to_keras=[(lambda make=make: to_keras(*make()), text) for make, text in TO_KERAS],
)
def test_unfit_layers_and_networks_are_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


def test_refused_second_layer_leaves_the_first_as_it_was():
    layers = make_layers("lstm", num_layers=1) + [built(LSTM(6))]
    before = layers[0].get_weights()
    with pytest.raises(ValueError, match=says("to_keras: layers[1]", "float32 (5, 20)")):
        to_keras(rnnkit.LSTM(7, 5, num_layers=2), layers)
    for name, a, b in zip("kernel recurrent bias".split(), layers[0].get_weights(), before, strict=True):
        assert_same_bits(name, a, b)
