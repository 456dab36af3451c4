"""from_keras and to_keras, against Keras 3 on its torch backend."""

import os

import numpy as np
import pytest
from foreign import assert_outputs, assert_refused, assert_same_bits, assert_same_network, net_of, problem_of

import rnnkit
from rnnkit.interop import from_keras, to_keras

os.environ.setdefault("KERAS_BACKEND", "torch")
if os.environ.get("CI") == "true":
    import keras  # in continuous integration these tests may not be skipped
else:
    keras = pytest.importorskip("keras")

# Of Keras itself, where it makes arrays of its variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

CELLS = {
    "tanh": (keras.layers.SimpleRNN, {}, dict(mode="rnn_tanh", bias="input")),
    "relu": (keras.layers.SimpleRNN, dict(activation="relu"), dict(mode="rnn_relu", bias="input")),
    "lstm": (keras.layers.LSTM, {}, dict(mode="lstm", bias="input")),
    "gru": (keras.layers.GRU, {}, dict(mode="gru")),
    "gru-reset-before": (keras.layers.GRU, dict(reset_after=False), dict(mode="gru", reset_after=False, bias="input")),
}


def make_layers(cell, bidirectional=False, num_layers=2, hidden_size=5, **options):
    """Built layers, each with weights that differ from one another."""
    cls, own, _ = CELLS[cell]
    rng, size, layers = np.random.default_rng(0), 7, []
    for _ in range(num_layers):
        layer = cls(hidden_size, return_sequences=True, return_state=True, **own, **options)
        layer = keras.layers.Bidirectional(layer) if bidirectional else layer
        layer.build((None, None, size))
        layer.set_weights([0.5 * rng.standard_normal(w.shape).astype(w.dtype) for w in layer.get_weights()])
        layers.append(layer)
        size = hidden_size * (2 if bidirectional else 1)
    return layers


def run_keras(layers, problem):
    """y and the last states of a stack of layers, batch-major inside."""
    y, last = problem.x.swapaxes(0, 1), []
    states = [state for state in (problem.hx, problem.cx) if state is not None]
    for layer in range(problem.num_layers):
        rows = range(layer * problem.directions, (layer + 1) * problem.directions)
        y, *found = layers[layer](y, initial_state=[state[row] for row in rows for state in states])
        last += found
    last = [keras.ops.convert_to_numpy(state) for state in last]
    return keras.ops.convert_to_numpy(y).swapaxes(0, 1), [np.stack(last[n :: len(states)]) for n in range(len(states))]


def assert_stack_is(net, layers, problem):
    assert net.desc == problem.desc
    # As float32: on PyTorch, Keras's product of two float64 matrices is rounded to that.
    assert_outputs(net, problem, *run_keras(layers, problem), "float32")


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cell", CELLS)
def test_layers_become_their_network(cell, dtype, bidirectional, use_bias):
    layers = make_layers(cell, bidirectional, use_bias=use_bias, dtype=dtype)
    fields = {**CELLS[cell][2], **({} if use_bias else {"bias": "none"})}
    problem = problem_of(**fields, bidirectional=bidirectional, dtype=dtype)
    net = from_keras(layers)
    assert_stack_is(net, layers, problem)
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
def test_a_network_is_written_into_layers(cell, bias, bidirectional):
    """Whichever biases the network has."""
    problem = problem_of(**{**CELLS[cell][2], "bias": bias}, bidirectional=bidirectional, dtype="float32")
    net, layers = net_of(problem), make_layers(cell, bidirectional)
    to_keras(net, layers)
    assert_outputs(net, problem, *run_keras(layers, problem))


def test_the_biases_keep_their_bits_where_one_is_zero():
    net = rnnkit.LSTM(3, 2, seed=0)
    net.views["bias_ih_l0"][:4] = [-0.0, 1e-30, 0.0, -0.0]
    net.views["bias_hh_l0"][:4] = [0.0, 0.0, 1e-30, -0.0]
    assert_same_bits("bias", to_keras(net)[0][2][:4], np.array([-0.0, 1e-30, 1e-30, -0.0], "f4"))


def test_the_weights_are_copies():
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


GRU, LSTM, SimpleRNN, Bidirectional = (
    getattr(keras.layers, name) for name in ("GRU", "LSTM", "SimpleRNN", "Bidirectional")
)
INFERENCE = "get_weights()"
NOT_OURS = [
    (lambda: LSTM(5, activation="relu"), "source.activation", ["tanh", "relu"]),
    (lambda: GRU(5, recurrent_activation="hard_sigmoid"), "source.recurrent_activation", ["sigmoid", "hard_sigmoid"]),
    (lambda: SimpleRNN(5, activation="sigmoid"), "source.activation", ["tanh", "relu", "sigmoid"]),
    (lambda: GRU(5, go_backwards=True), "source.go_backwards", [False, True, "Bidirectional"]),
    (lambda: GRU(5, dropout=0.5), "source.dropout", [0, 0.5, INFERENCE]),
    (lambda: LSTM(5, recurrent_dropout=0.5), "source.recurrent_dropout", [0, 0.5, INFERENCE]),
    (lambda: Bidirectional(LSTM(5), merge_mode="sum"), "source.merge_mode", ["concat", "sum"]),
    (lambda: Bidirectional(LSTM(5), merge_mode=None), "source.merge_mode", ["concat", None]),
    (lambda: Bidirectional(LSTM(5, go_backwards=True), backward_layer=LSTM(5)),
     "source.forward_layer.go_backwards", [False, True, "Bidirectional"]),
    (lambda: Bidirectional(LSTM(5), backward_layer=GRU(5, go_backwards=True)),
     "source.backward_layer.mode", ["lstm", "source.forward_layer", "gru"]),
    (lambda: Bidirectional(LSTM(5), backward_layer=LSTM(6, go_backwards=True)),
     'source.backward_layer["kernel"]', ["(input_size=7, 4*hidden_size=20)", (7, 24)]),
]


@pytest.mark.parametrize(("make", "argument", "facts"), NOT_OURS, ids=[row[1] for row in NOT_OURS])
def test_what_computes_something_else_is_refused(make, argument, facts):
    layer = built(make())
    assert_refused(lambda: from_keras(layer), ValueError, f"from_keras: {argument}", *facts)


@pytest.mark.parametrize("make", [lambda: GRU(5, dropout=0.5), lambda: LSTM(5, recurrent_dropout=0.5)])
def test_the_weights_of_a_layer_with_dropout_are_taken(make):
    layer = built(make())
    assert_same_bits("kernel", to_keras(from_keras(layer.get_weights()))[0][0], layer.get_weights()[0])


REFUSED = [
    (lambda: GRU(5), {}, ValueError, "source", ["weights", "none", "build"]),
    (lambda: built(keras.layers.Dense(5)), {}, TypeError,
     "source", ["Keras", "SimpleRNN", "GRU", "LSTM", "Bidirectional", "keras.src.layers.core.dense.Dense"]),
    (lambda: built(Bidirectional(GRU(5))), dict(reset_after=True), ValueError, "reset_after", ["layers", True]),
    (lambda: built(SimpleRNN(5)), dict(activation="tanh"), ValueError, "activation", ["layers", "tanh"]),
    (lambda: [built(GRU(7)), built(LSTM(7))], {}, ValueError,
     "source[1].mode", ["gru", "source[0]", "lstm"]),
    (lambda: [built(GRU(7)), built(GRU(7, reset_after=False))], {}, ValueError,
     "source[1].reset_after", [True, "source[0]", False]),
    (lambda: [built(GRU(7)), built(GRU(7, use_bias=False))], {}, ValueError,
     "source[1].use_bias", [True, "source[0]", False]),
    (lambda: [built(GRU(7)), built(Bidirectional(GRU(7)))], {}, ValueError,
     "source[1].forward_layer", [1, "source[0]", 2]),
    (lambda: [built(GRU(5)), built(GRU(5))], {}, ValueError,
     'source[1]["kernel"]', ["(input_size=5, 3*hidden_size=15)", (7, 15)]),
    (lambda: [built(GRU(7)), built(GRU(5))], {}, ValueError,
     'source[1]["kernel"]', ["(input_size=7, 3*hidden_size=21)", (7, 15)]),
    (lambda: [built(GRU(7)), built(GRU(7, dtype="float64"))], {}, TypeError,
     'source[1]["kernel"]', ["float32", 'source[0]["kernel"]', "float64"]),
    (lambda: [built(GRU(7)), 3], {}, TypeError,
     "source[1]", ["Keras", "int"]),
    (lambda: "source", {}, TypeError, "source", ["Keras", "list", "str"]),
    (lambda: [], {}, ValueError, "source", ["Keras", "empty list"]),
    (lambda: arrays_of((3, 6)), {}, ValueError,
     "source", [2, 3, "(kernel, recurrent_kernel, bias)", "Bidirectional", 1]),
    (lambda: arrays_of((3, 6), (2, 6), (6,), dtype="f2"), {}, TypeError,
     'source["recurrent_kernel"]', ["float32", "float64", "float16"]),
    (lambda: arrays_of((3, 6), (2,), (6,)), {}, ValueError,
     'source["recurrent_kernel"]', ["(hidden_size, gates*hidden_size)", (2,)]),
    (lambda: arrays_of((3, 6), (2, 7), (6,)), {}, ValueError,
     'source["recurrent_kernel"]', [2, 6, 8, 1, 3, 4, "hidden_size=2", 7]),
    (lambda: arrays_of((3, 6), (2, 6), (2, 5)), {}, ValueError,
     'source["bias"]', ["(biases=2, 3*hidden_size=6)", (2, 5)]),
    (lambda: arrays_of((3, 6), (2, 6), (5,)), {}, ValueError,
     'source["bias"]', ["(3*hidden_size=6,)", (5,)]),
    (lambda: arrays_of((6,), (2, 6)), {}, ValueError,
     'source["kernel"]', ["(input_size, 3*hidden_size)", (6,)]),
    (lambda: arrays_of((3, 8), (2, 8), (8,)), dict(reset_after=False), ValueError,
     "reset_after", ['mode="lstm"', False]),
    (lambda: arrays_of((3, 6), (2, 6), (6,)), dict(reset_after=False), ValueError, "reset_after", ["bias", False]),
    (lambda: arrays_of((3, 6), (2, 6)), dict(activation="relu"), ValueError, "activation", ['mode="gru"', "relu"]),
    (lambda: arrays_of((3, 2), (2, 2)), dict(activation="gelu"), ValueError, "activation", ["tanh", "relu", "gelu"]),
    (lambda: [arrays_of((3, 6), (2, 6)), arrays_of((2, 6), (2, 6), (6,))], {}, ValueError,
     "source[1]", [3, "gru", "unknown: bias"]),
]


@pytest.mark.parametrize(("make", "options", "kind", "argument", "facts"), REFUSED, ids=[row[3] for row in REFUSED])
def test_from_keras_refuses(make, options, kind, argument, facts):
    source = make()
    assert_refused(lambda: from_keras(source, **options), kind, f"from_keras: {argument}", *facts)


def test_a_subclass_is_refused():
    class Own(LSTM):
        pass

    layer = built(Own(5))
    assert_refused(lambda: from_keras(layer), TypeError, "from_keras: source", "SimpleRNN", "test_interop_keras")


TO_REFUSED = [
    (lambda: (rnnkit.LSTM(7, 5, proj_size=2), None), "net.desc.proj_size", [None, 2, "Keras"]),
    (lambda: (rnnkit.LSTM(7, 5, cell_clip=(-1, 1)), None), "net.desc.cell_clip", [None, (-1.0, 1.0), "Keras"]),
    (lambda: (rnnkit.LSTM(5, 5, input_mode="skip"), None), "net.desc.input_mode", ["linear", "skip", "Keras"]),
    (lambda: (rnnkit.GRU(7, 5, num_layers=2), [built(GRU(5))]), "layers", [2, 1]),
    (lambda: (rnnkit.GRU(7, 5), built(LSTM(5))), "layers.mode", ["gru", "lstm"]),
    (lambda: (rnnkit.GRU(7, 5), built(GRU(5, reset_after=False))), "layers.reset_after", [True, False]),
    (lambda: (rnnkit.GRU(7, 5), built(GRU(5, use_bias=False))), "layers.use_bias", [True, False]),
    (lambda: (rnnkit.GRU(7, 5), built(GRU(5, go_backwards=True))),
     "layers.go_backwards", [False, True, "Bidirectional"]),
    (lambda: (rnnkit.GRU(7, 6, bias="none"), built(GRU(5, use_bias=False))),
     "layers", ["float32 (7, 18), float32 (6, 18)", "float32 (7, 15), float32 (5, 15)"]),
    (lambda: (rnnkit.GRU(7, 5, bias="none"), built(GRU(5, use_bias=False, dtype="float64"))),
     "layers", ["float32 (7, 15), float32 (5, 15)", "float64 (7, 15), float64 (5, 15)"]),
    (lambda: (rnnkit.GRU(7, 5, bias="none", bidirectional=True), built(GRU(5, use_bias=False))),
     "layers", [", ".join(["float32 (7, 15), float32 (5, 15)"] * 2)]),
]


@pytest.mark.parametrize(("make", "argument", "facts"), TO_REFUSED, ids=[row[1] for row in TO_REFUSED])
def test_to_keras_refuses(make, argument, facts):
    net, layers = make()
    assert_refused(lambda: to_keras(net, layers), ValueError, f"to_keras: {argument}", *facts)


def test_nothing_is_written_if_the_second_layer_is_refused():
    layers = make_layers("lstm", num_layers=1) + [built(LSTM(6))]
    before = layers[0].get_weights()
    net = rnnkit.LSTM(7, 5, num_layers=2)
    assert_refused(lambda: to_keras(net, layers), ValueError, "to_keras: layers[1]", "float32 (5, 20)")
    for name, a, b in zip("kernel recurrent bias".split(), layers[0].get_weights(), before, strict=True):
        assert_same_bits(name, a, b)


def test_only_layers_are_written_into():
    assert_refused(lambda: to_keras(rnnkit.GRU(7, 5), [arrays_of((7, 15), (5, 15))]), TypeError,
                   "to_keras: layers[0]", "Keras", "list")
