"""Layers beside Keras's: outputs, states and all gradients, for every option."""

import keras
import numpy as np
import pytest
from combinations import pairs
from keras_calls import BACKEND, TRAINS, assert_near, run
from messages import says

import rnnkit
import rnnkit.keras
from rnnkit.cells import AUGRU, SLSTM, MinGRU, RegularizedLSTM
from rnnkit.keras.layers import why_not

# Of Keras itself, where it makes arrays of its variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
T, N, F, H = 7, 5, 3, 4
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, T, F), np.float32)
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


def both(kind, **options):
    """A layer of Keras and one of rnnkit with the same weights."""
    name, own = KINDS[kind]
    layers = [getattr(place, name)(H, **own, **options) for place in (keras.layers, rnnkit.keras)]
    for one in layers:
        one.build(X.shape)
    weights = [0.5 * RNG.standard_normal(one.shape).astype("f4") for one in layers[0].get_weights()]
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
    new = lambda *shape: RNG.standard_normal(shape).astype("f4")  # noqa: E731
    count = 2 if KINDS[kind][0] == "LSTM" else 1
    states = [new(N, H) for _ in range(count)] if initial else None
    probes = [new(*((N, T, H) if sequences else (N, H))), *(new(N, H) for _ in range(count))]
    given = X, states, MASKS[mask], probes
    assert_near(run(own, *given), run(plain, *given))


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_inference_matches_training(kind):
    plain, own = both(kind, return_sequences=True, dropout=0.5)
    assert_near(run(own, X, mask=RIGHT, training=False), run(plain, X, mask=RIGHT, training=False))


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


@pytest.mark.parametrize("merge", ["concat", "sum", None])
def test_bidirectional_layers(merge):
    plain, own = both("lstm", return_sequences=True)
    pair = [keras.layers.Bidirectional(one, merge_mode=merge) for one in (plain, own)]
    for one in pair:
        one.build(X.shape)
    pair[1].set_weights(pair[0].get_weights())
    probes = [RNG.standard_normal((N, T, 2 * H if merge == "concat" else H)).astype("f4")] * (2 if merge is None else 1)
    given = X, None, RIGHT, probes
    assert_near(run(pair[1], *given), run(pair[0], *given))
    assert isinstance(pair[1].backward_layer, rnnkit.keras.LSTM)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("LSTM", dict(activation="relu"), "activation is relu"),
        ("GRU", dict(recurrent_activation="hard_sigmoid"), "recurrent_activation is hard_sigmoid"),
        ("LSTM", dict(dtype="mixed_bfloat16"), "computes in bfloat16"),
        ("SimpleRNN", dict(activation="sigmoid"), "activation is sigmoid"),
        *([] if BACKEND == "torch" else [("LSTM", dict(unroll=True), "unroll=True")]),
    ],
)
def test_what_the_engine_lacks_stays_on_keras(kind, options, reason):
    layers = [getattr(place, kind)(H, **options) for place in (keras.layers, rnnkit.keras)]
    for one in layers:
        one.build(X.shape)
    layers[1].set_weights(layers[0].get_weights())
    assert reason in why_not(layers[1])
    if "dtype" not in options or BACKEND != "numpy":
        plain, own = (run(one, X, training=False) for one in layers)
        np.testing.assert_array_equal(np.asarray(own, "f4"), np.asarray(plain, "f4"))


def test_recurrent_dropout_stays_on_keras_in_training():
    layer = rnnkit.keras.LSTM(H, recurrent_dropout=0.5)
    layer.build(X.shape)
    assert why_not(layer) is None and "recurrent_dropout" in why_not(layer, training=True)


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
