"""Layers beside Keras's: outputs, states and all gradients, for every option."""

import keras
import numpy as np
import pytest
from combinations import nightly, pairs
from keras import ops
from keras_calls import BACKEND, TRAINS, assert_near, not_old, run
from messages import says

import rnnkit
import rnnkit.keras
from rnnkit.call.drawn import drawn
from rnnkit.cells import AUGRU, SLSTM, MinGRU, RegularizedLSTM
from rnnkit.keras import backends
from rnnkit.keras import bidirectional as bidirectional_module
from rnnkit.keras import layers as layers_module
from rnnkit.keras.layers import why_not

# Of Keras itself, where it makes arrays of its variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
T, N, F, H = 7, 5, 3, 4
RNG = np.random.default_rng(0)


def new(*shape):
    return RNG.standard_normal(shape, np.float32)


X = new(N, T, F)
LENGTHS = np.array([7, 3, 1, 5, 2])
RIGHT, HOLES = np.arange(T) < LENGTHS[:, None], RNG.random((N, T)) < 0.6
EMPTY = RIGHT.copy()
EMPTY[2] = False
MASKS = {"none": None, "right": RIGHT, "left": RIGHT[:, ::-1].copy(), "holes": HOLES, "empty": EMPTY}
KINDS = {
    "lstm": ("LSTM", {}), "gru": ("GRU", {}), "gru before": ("GRU", dict(reset_after=False)), "tanh": ("SimpleRNN", {}),
    "relu": ("SimpleRNN", dict(activation="relu")), "no bias": ("LSTM", dict(use_bias=False)),
    "gru no bias": ("GRU", dict(use_bias=False)),
}  # fmt: skip

ACTIVATED = [
    ("LSTM", dict(activation="relu", recurrent_activation="hard_sigmoid")),
    ("GRU", dict(activation="elu")),
    nightly("GRU", dict(activation="softsign", reset_after=False)),
    nightly("SimpleRNN", dict(activation=None)),
    nightly("LSTM", dict(activation="leaky_relu")),
]


def twins(make):
    """A layer of Keras and one of rnnkit, by what makes one from a module, with the same weights."""
    layers = [make(place) for place in (keras.layers, rnnkit.keras)]
    for one in layers:
        one.build(X.shape)
    layers[1].set_weights(layers[0].get_weights())
    return layers


def both(kind, **options):
    """The same of a kind, with large weights."""
    name, own = KINDS[kind]
    layers = twins(lambda place: getattr(place, name)(H, **own, **options))
    weights = [0.5 * new(*one.shape) for one in layers[0].get_weights()]
    for one in layers:
        one.set_weights(weights)
    return layers


@pytest.mark.parametrize(
    ("kind", "mask", "sequences", "backwards", "initial", "zeros"),
    # XLA compiles each case.
    pairs(KINDS, MASKS, [True, False], [False, True], [False, True], [False, True], each=1 if BACKEND == "jax" else 2),
)
def test_layers_match_kerass(kind, mask, sequences, backwards, initial, zeros):
    options = dict(return_sequences=sequences, go_backwards=backwards, zero_output_for_mask=zeros, return_state=True)
    plain, own = both(kind, **options)
    assert why_not(own) is None
    count = 2 if KINDS[kind][0] == "LSTM" else 1
    states = [new(N, H) for _ in range(count)] if initial else None
    probes = [new(*((N, T, H) if sequences else (N, H))), *(new(N, H) for _ in range(count))]
    given = X, states, MASKS[mask], probes
    assert_near(run(own, *given), run(plain, *given))


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_inference_and_its_gradients(kind):
    """Without dropout."""
    plain, own = both(kind, return_sequences=True, dropout=0.5, recurrent_dropout=0.5)
    given = X, None, RIGHT, [new(N, T, H)]
    assert_near(run(own, *given, training=False), run(plain, *given, training=False))


@not_old
@pytest.mark.skipif(not TRAINS, reason="trains nothing")
@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_dropout_drops_what_keras_drops(kind):
    """The same inputs of all steps, drawn by Keras's own generator."""
    plain, own = both(kind, return_sequences=True, dropout=0.5, seed=3)
    (expected,), (found,) = run(plain, X), run(own, X)
    assert_near([found], [expected])
    assert not np.allclose(found, run(own, X, training=False)[0])


def test_stateful_layers_go_on():
    layers = both("gru", stateful=True, return_sequences=True)
    first, second = X[:, :4], X[:, 4:]
    for half in first, second:
        plain, own = (run(one, half, training=False) for one in layers)
        assert_near(own, plain)
    [one.reset_states() for one in layers]
    assert_near(*(run(one, second, training=False) for one in layers))


def bidirectional(kind, merge="concat", **options):
    """The same of Keras and of rnnkit, around equal layers."""
    layers = dict(zip((keras.layers, rnnkit.keras), both(kind, **options), strict=True))
    return twins(lambda place: place.Bidirectional(layers[place], merge_mode=merge))


@pytest.fixture
def engine_calls(monkeypatch):
    """The calls of the engine that a test makes."""
    made, original = [], backends.run_of_backend()

    def run_one(call):
        made.append(call)
        return original(call)

    for module in layers_module, bidirectional_module:
        monkeypatch.setattr(module, "run_of_backend", lambda: run_one)
    return made


@not_old
@pytest.mark.parametrize(
    ("kind", "merge", "mask", "sequences", "initial"),
    pairs(["lstm", "gru", "tanh"], ["concat", "sum", "mul", "ave", None], MASKS, [True, False], [False, True], each=1),
)
def test_bidirectional_layers_are_one_network(engine_calls, kind, merge, mask, sequences, initial):
    pair = bidirectional(kind, merge, return_sequences=sequences, return_state=True)
    count = 4 if kind == "lstm" else 2
    states = [new(N, H) for _ in range(count)] if initial else None
    shape = (*((N, T) if sequences else (N,)), 2 * H if merge == "concat" else H)
    probes = [new(*shape) for _ in range(2 if merge is None else 1)] + [new(N, H) for _ in range(count)]
    given = X, states, MASKS[mask], probes
    assert_near(run(pair[1], *given), run(pair[0], *given))
    assert {one.desc.num_directions for one in engine_calls} == {2}


@pytest.mark.parametrize(
    "options",
    [dict(dropout=0.5), dict(stateful=True), dict(activity_regularizer="l2")],
    ids=lambda options: next(iter(options)),
)
def test_bidirectional_layers_that_are_two_networks(engine_calls, options):
    plain, own = bidirectional("lstm", return_sequences=True, seed=3, **options)
    assert_near(run(own, X, mask=RIGHT), run(plain, X, mask=RIGHT))
    assert {one.desc.num_directions for one in engine_calls} == {1}


def test_directions_of_two_kinds_are_two_networks(engine_calls):
    def make(place):
        reverse = place.GRU(H, go_backwards=True, return_sequences=True)
        return place.Bidirectional(place.LSTM(H, return_sequences=True), backward_layer=reverse)

    assert_near(*(run(one, X, mask=HOLES) for one in twins(make)))
    assert [one.desc.mode for one in engine_calls] == ["lstm", "gru"]


@pytest.mark.skipif(not TRAINS, reason="trains nothing")
def test_bidirectional_layers_drop_states(engine_calls):
    _, own = bidirectional("gru", return_sequences=True, recurrent_dropout=0.5)
    assert not np.allclose(run(own, X)[0], run(own, X, training=False)[0])
    assert engine_calls[0].desc.draws and engine_calls[0].desc.num_directions == 2


@pytest.mark.parametrize(("kind", "options"), ACTIVATED)
def test_other_activations(kind, options):
    layers = twins(lambda place: getattr(place, kind)(H, return_sequences=True, **options))
    assert why_not(layers[1]) is None
    given = X, None, RIGHT, [new(N, T, H)]
    assert_near(*(run(one, *given) for one in layers))


@not_old
@pytest.mark.skipif(not TRAINS, reason="trains nothing")
@pytest.mark.parametrize("kind", ["lstm", nightly("gru"), nightly("gru before"), nightly("tanh")])
@pytest.mark.parametrize("dropout", [0, 0.3])
def test_recurrent_dropout_is_kerass_with_the_engines_masks(monkeypatch, engine_calls, kind, dropout):
    """Keras draws for each gate a mask of h, and of x."""
    monkeypatch.setattr(layers_module, "seed_of", lambda layer, training: 7)
    plain, own = both(kind, return_sequences=True, dropout=dropout, recurrent_dropout=0.4, seed=3)
    given = X, None, RIGHT, [new(N, T, H)]
    found = run(own, *given)
    desc = engine_calls[0].desc
    zeros = np.zeros(rnnkit.num_weights(desc), "f4"), np.zeros((T, N, desc.input_size), "f4")
    workspace = rnnkit.forward(desc, *zeros, seed=7).workspace
    noises = {name.removeprefix("k"): one[0] for name, one in drawn(workspace)[1].items()}
    assert all(set(np.unique(one)) == {0, np.float32(1 / 0.6)} for one in noises.values())
    order = {"lstm": "ifgo", "tanh": "a"}.get(kind, "zrn")
    masks = [ops.convert_to_tensor(noises[gate]) for gate in order]
    plain.cell.get_recurrent_dropout_mask = lambda state: masks if len(masks) > 1 else masks[0]
    assert_near(found, run(plain, *given))


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("LSTM", dict(activation="gelu"), "activation is gelu"),
        ("GRU", dict(recurrent_activation=keras.layers.ReLU()), "recurrent_activation is <ReLU"),
        ("LSTM", dict(dtype="mixed_bfloat16"), "computes in bfloat16"),
    ],
)
def test_what_the_engine_lacks_stays_on_keras(kind, options, reason):
    layers = twins(lambda place: getattr(place, kind)(H, **options))
    assert reason in why_not(layers[1])
    if "dtype" not in options or BACKEND != "numpy":
        plain, own = (run(one, X, training=False) for one in layers)
        np.testing.assert_array_equal(np.asarray(own, "f4"), np.asarray(plain, "f4"))


@pytest.mark.parametrize(
    ("kind", "units", "rows", "mask", "training", "calls"),
    [
        ("LSTM", 16, 8, False, False, BACKEND != "jax"),
        ("LSTM", 16, 7, False, False, True),
        ("LSTM", 16, 8, True, False, True),
        ("LSTM", 16, 8, False, True, True),
        ("GRU", 100, 1, False, False, BACKEND != "tensorflow"),
        ("GRU", 99, 1, False, False, True),
    ],
)
def test_calls_in_which_keras_is_faster_are_left_to_it(engine_calls, kind, units, rows, mask, training, calls):
    layer = getattr(rnnkit.keras, kind)(units)
    given = {"mask": ops.ones((rows, 15), "bool")} if mask else {}
    layer(ops.zeros((rows, 15, 2)), training=training and TRAINS, **given)
    assert len(engine_calls) == (calls or (training and not TRAINS))


@pytest.mark.skipif(BACKEND in ("torch", "tensorflow"), reason="the same results")
def test_unrolled_layers_stay_on_keras_with_a_mask(engine_calls):
    plain, own = both("lstm", unroll=True)
    assert "unroll" in why_not(own, masked=True)
    for mask in None, HOLES:
        assert_near(run(own, X, mask=mask), run(plain, X, mask=mask))
    assert len(engine_calls) == 1


@pytest.mark.parametrize("cell", ["lstm", "gru", MinGRU(), SLSTM()], ids=str)
def test_any_cell_is_a_layer(cell):
    layer = rnnkit.keras.RNN(cell, H, return_sequences=True, return_state=True)
    layer.build(X.shape)
    desc, w = layer.cell.desc, keras.ops.convert_to_numpy(layer.cell.flat)
    x = np.ascontiguousarray(X.swapaxes(0, 1))
    result = rnnkit.forward(desc, w, x, mask=RIGHT.T)
    states = [result.hy, *(result.cy if isinstance(result.cy, tuple) else [] if result.cy is None else [result.cy])]
    dy, *others = (np.ones_like(one) for one in (result.y, *states))
    probes = [dy.swapaxes(0, 1), *(one[0] for one in others)]
    y, *after = run(layer, X, None, RIGHT, probes)
    lead = np.cumsum(RIGHT, 1)[..., None] > 0
    assert_near([y, *after[: len(states)]], [result.y.swapaxes(0, 1) * lead, *(one[0] for one in states)], 1e-6)
    if TRAINS:
        dcy = None if len(others) == 1 else others[1] if len(others) == 2 else tuple(others[1:])
        dx, _, _, dw, *_ = rnnkit.backward(desc, w, result.workspace, dy, others[0], dcy)
        assert_near(after[len(states) :], [dx.swapaxes(0, 1), dw], 1e-5)


@not_old
def test_initial_weights_are_drawn_by_keras():
    found = []
    for seed in (None, None, 5, 5):
        keras.utils.set_random_seed(1)
        layer = rnnkit.keras.RNN("gru", H, seed=seed)
        layer.build(X.shape)
        found.append(keras.ops.convert_to_numpy(layer.cell.flat))
    assert (found[0] == found[1]).all() and (found[2] == found[3]).all() and not (found[0] == found[2]).all()
    np.testing.assert_array_equal(found[2], rnnkit.init_weights(layer.cell.desc, 5))


def test_another_dtype_of_computing_is_refused():
    with pytest.raises(TypeError, match=says("RNN: dtype", "float32", "bfloat16")):
        rnnkit.keras.RNN("gru", H, dtype="mixed_bfloat16")


def test_a_cell_runs_a_step():
    layer = rnnkit.keras.RNN(MinGRU(), H)
    layer.build(X.shape)
    y, _ = layer.cell(X[:, 0], [np.zeros((N, H), np.float32)])
    assert_near([keras.ops.convert_to_numpy(y)], run(layer, X[:, :1], training=False), 1e-6)


@pytest.mark.parametrize(("cell", "what"), [(AUGRU(), "side inputs"), (RegularizedLSTM(zoneout=0.2), "noises")])
def test_cells_that_keras_cannot_feed_are_refused(cell, what):
    with pytest.raises(ValueError, match=says("RNN: cell", what)):
        rnnkit.keras.RNN(cell, H)
