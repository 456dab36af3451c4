"""Whole models: switched to the engine and back, trained, saved and loaded."""

import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from combinations import nightly
from keras import layers, ops
from keras_calls import BACKEND, TRAINS, assert_near, not_old
from messages import says

import rnnkit.keras
from rnnkit.cells import MinGRU
from rnnkit.keras import private
from rnnkit.keras.layers import OnEngine, starts_from_zeros

# Of Keras itself, where it makes arrays of its variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
N, T, V, H = 24, 9, 11, 8
RNG = np.random.default_rng(0)
WORDS = RNG.integers(1, V, (N, T)) * (np.arange(T) >= RNG.integers(0, T, (N, 1)))  # 0 is padding, on the left
SERIES, LABELS = RNG.standard_normal((N, T, 3), np.float32), RNG.integers(0, 2, (N, 1)).astype("f4")
trains = pytest.mark.skipif(not TRAINS, reason="trains nothing")


def classifier():
    """Left-padded words, a mask, two directions."""
    words = keras.Input((T,), dtype="int32")
    x = layers.Embedding(V, 6, mask_zero=True)(words)
    x = layers.Bidirectional(layers.GRU(H, return_sequences=True), name="both")(x)
    return keras.Model(words, layers.Dense(1, activation="sigmoid")(layers.LSTM(H, name="last")(x))), WORDS


def forecaster():
    return keras.Sequential(
        [keras.Input((T, 3)), layers.LSTM(H, return_sequences=True), layers.SimpleRNN(H), layers.Dense(1)]
    ), SERIES


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.shared, self.dense = layers.GRU(3, return_sequences=True), layers.Dense(1)

    def call(self, x, training=False):
        return self.dense(self.shared(self.shared(x, training=training), training=training)[:, -1])


MODELS = {"classifier": classifier, "forecaster": forecaster, "subclassed": lambda: (Subclassed(), SERIES)}


def made(name, accelerated=True, **options):
    keras.utils.set_random_seed(1)
    model, x = MODELS[name]()
    model(x[:2])
    if accelerated:
        changed, left = rnnkit.keras.accelerate(model)
        assert changed and not left
    model.compile("adam", "mse", **options)
    return model, x


compiles = nightly if BACKEND == "jax" else pytest.param  # XLA takes seconds


@trains
@pytest.mark.parametrize("name", ["classifier", compiles("forecaster"), compiles("subclassed")])
def test_training_ends_with_the_same_weights(name):
    """A ragged last batch included."""
    found = []
    for accelerated in False, True:
        model, x = made(name, accelerated)
        history = model.fit(x, LABELS, batch_size=10, epochs=2, verbose=0, shuffle=False).history["loss"]
        found.append([*model.get_weights(), model.predict(x, verbose=0), model.evaluate(x, LABELS, verbose=0), history])
    assert_near(found[1], found[0], 2e-6)


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_the_same_and_restore_goes_back(name):
    model, x = made(name, accelerated=False)
    expected = model.predict(x, verbose=0)
    changed, _ = rnnkit.keras.accelerate(model)  # after Keras has traced the call
    assert_near([model.predict(x, verbose=0)], [expected], 1e-6)
    assert rnnkit.keras.accelerate(model).changed == ()
    assert rnnkit.keras.restore(model) == changed
    assert not any(isinstance(one, OnEngine) for one in model._flatten_layers())
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
    assert rnnkit.keras.restore(model) == ()


def test_what_is_left_is_named():
    model = keras.Sequential([
        keras.Input((T, 3)), layers.LSTM(H, activation="gelu", return_sequences=True, name="gelu"),
        layers.LSTM(H, recurrent_dropout=0.5, return_sequences=True, name="drops"),
        layers.LSTM(H, unroll=True, return_sequences=True, name="unrolled"),
        layers.RNN(layers.GRUCell(H), name="loop"),
    ])  # fmt: skip
    changed, left = rnnkit.keras.accelerate(model)
    assert [one.split("/")[-1] for one in changed] == ["drops", "unrolled"]
    reasons = {name.split("/")[-1]: reason for name, reason in left.items()}
    unrolled = {"unrolled": "with a mask: unroll=True has results of its own where steps are masked"}
    assert reasons == {
        "gelu": "its activation is gelu", "loop": "it is a RNN", **({} if starts_from_zeros() else unrolled),
    }  # fmt: skip


def test_layers_of_another_keras_are_left(monkeypatch):
    """Without the private method that is overridden."""
    monkeypatch.setattr(layers.GRU, "inner_loop", lambda self, inputs: None)
    monkeypatch.setattr(private, "difference", private.difference.__wrapped__)
    monkeypatch.setattr(rnnkit.keras.acceleration, "difference", private.difference)
    model = keras.Sequential([keras.Input((T, 3)), layers.LSTM(H, return_sequences=True), layers.GRU(H)])
    changed, (reason,) = *rnnkit.keras.accelerate(model)[:1], rnnkit.keras.accelerate(model).left.values()
    assert changed == () and f"Keras {keras.__version__} has no GRU.inner_loop(sequences" in reason
    assert rnnkit.keras.restore(model) == () and type(model.layers[0]) is layers.LSTM


def test_a_layer_alone_is_switched():
    layer = layers.GRU(H)
    assert rnnkit.keras.accelerate(layer).changed and isinstance(layer, OnEngine)
    assert rnnkit.keras.restore(layer) and type(layer) is layers.GRU


@pytest.mark.parametrize("function", [rnnkit.keras.accelerate, rnnkit.keras.restore])
def test_what_is_no_layer_is_refused(function):
    with pytest.raises(TypeError, match=says(f"{function.__name__}: model", "keras.Model", "str")):
        function("model")


LOADS = """
import sys
sys.modules["rnnkit"] = None
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
np.testing.assert_allclose(model.predict(np.load(sys.argv[2]), verbose=0), np.load(sys.argv[3]), atol=1e-6)
"""


@not_old
def test_files_load_without_rnnkit(tmp_path):
    model, x = made("classifier")
    paths = tmp_path / "model.keras", tmp_path / "x.npy", tmp_path / "y.npy"
    model.save(paths[0])
    np.save(paths[1], x)
    np.save(paths[2], model.predict(x, verbose=0))
    done = subprocess.run([sys.executable, "-c", LOADS, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@not_old
def test_own_layers_are_saved_and_loaded(tmp_path):
    first = layers.Bidirectional(rnnkit.keras.RNN(MinGRU(), H, return_sequences=True))
    model = keras.Sequential([keras.Input((T, 3)), first, rnnkit.keras.LSTM(H), layers.Dense(1)])
    if TRAINS:
        model.compile("adam", "mse")
        model.fit(SERIES, LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.layers[1], rnnkit.keras.LSTM)
    np.testing.assert_array_equal(loaded.predict(SERIES, verbose=0), model.predict(SERIES, verbose=0))


@trains
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of the compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # of it, too
@pytest.mark.filterwarnings("ignore:Model doesn't support `jit_compile=True`:UserWarning")  # TensorFlow
@pytest.mark.parametrize("options", [compiles(dict(run_eagerly=True)), nightly(dict(jit_compile=True))])
def test_models_are_compiled_or_not(options):
    model, x = made("classifier", **options)
    plain, _ = made("classifier", accelerated=False, **options)
    losses = [one.train_on_batch(x, LABELS) for one in (model, plain)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@trains
def test_many_steps_need_no_more_memory():
    model, x = made("classifier")
    for _ in range(20):
        model.train_on_batch(x, LABELS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        model.train_on_batch(x, LABELS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 5000  # kB


def test_threads_predict_at_the_same_time():
    model, x = made("classifier")
    expected = ops.convert_to_numpy(model(x))
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: ops.convert_to_numpy(model(x)), range(40)):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(BACKEND != "torch", reason="of PyTorch")
def test_backward_twice():
    import torch

    layer, x = rnnkit.keras.GRU(H), torch.tensor(SERIES[:2], requires_grad=True)
    loss = layer(x).sum()
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow")


@tensorflow
def test_gradients_of_inference_and_twice():
    import tensorflow as tf

    layer, x = rnnkit.keras.GRU(H), tf.constant(SERIES[:2])
    found = []
    for training in False, True:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, training=training))
        found += [tape.gradient(loss, x).numpy() for _ in range(2)]
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


@tensorflow
def test_gradients_of_gradients_are_refused():
    import tensorflow as tf

    layer, x = rnnkit.keras.GRU(H), tf.constant(SERIES[:2])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(layer(x))
        slope = inner.gradient(loss, x)
    with pytest.raises(NotImplementedError, match=says("backward", "rnnkit.keras.restore")):
        outer.gradient(slope, x)


@tensorflow
def test_export_is_refused_until_restored(tmp_path):
    model, _ = made("classifier")
    with pytest.raises(ValueError, match=says("export: model", "call rnnkit.keras.restore")):
        model.export(tmp_path / "model", verbose=False)
    rnnkit.keras.restore(model)
    model.export(tmp_path / "model", verbose=False)


@tensorflow
@pytest.mark.filterwarnings("ignore:Model doesn't support `jit_compile=True`:UserWarning")
def test_xla_is_switched_off():
    model, x = made("forecaster", accelerated=False, jit_compile=True)
    model.jit_compile = True
    rnnkit.keras.accelerate(model)
    model.fit(x, LABELS, verbose=0)
    assert not model.jit_compile


@pytest.mark.skipif(BACKEND != "torch", reason="of PyTorch")
def test_gradients_of_gradients_run_on_pytorch():
    import torch

    layer = rnnkit.keras.GRU(H)
    x = torch.tensor(SERIES[:2], requires_grad=True)
    (slope,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    with pytest.warns(match="second derivatives"):
        slope.square().sum().backward()
    assert ops.convert_to_numpy(x.grad).any()
