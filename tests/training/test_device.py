"""CuPy's arrays, a stand-in's first, have the results of NumPy's."""

import sys

import numpy as np
import pytest
from messages import says
from standin_arithmetic import add_arithmetic
from tolerances import assert_close

from rnnkit import training

LENGTHS = (6, 0, 3, 1)


@pytest.fixture
def cupy(gpu, monkeypatch):
    if gpu == "stand-in":
        add_arithmetic(monkeypatch)
    return sys.modules["cupy"]


def assert_same(name, actual, expected):
    assert isinstance(actual, sys.modules["cupy"].ndarray), f"{name} is a {type(actual)}"
    assert_close(name, actual.get(), expected, expected.dtype.name)


OPTIMIZERS = {
    "adam": lambda w: training.Adam(w, weight_decay=[0.1, 0.0]),
    "sgd": lambda w: training.SGD(w, weight_decay=[0.1, 0.0]),
    "momentum": lambda w: training.SGD(w, 0.9, weight_decay=[0.1, 0.0]),
    "nesterov": lambda w: training.SGD(w, 0.9, True, weight_decay=[0.1, 0.0]),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_equal_those_on_the_host(cupy, name):
    rng = np.random.default_rng(0)
    w, gradients = rng.normal(size=(2, 30)), rng.normal(size=(5, 2, 30))
    own, theirs = list(w.copy()), [cupy.asarray(part) for part in w]
    host, device = OPTIMIZERS[name](own), OPTIMIZERS[name](theirs)
    for gradient in gradients:
        host.step(list(gradient), 0.1)
        device.step([cupy.asarray(part) for part in gradient], 0.1)
        state = device.state
        assert all(type(array) is np.ndarray for array in state.values())
        device = OPTIMIZERS[name](theirs)
        device.restore(state)
    for actual, expected in zip(theirs, own, strict=True):
        assert_same("w", actual, expected)


def test_arrays_of_both_libraries_are_refused(cupy):
    ours, theirs = np.ones(3), cupy.asarray(np.ones(3))
    facts = f"{type(theirs).__module__}.ndarray", "numpy.ndarray"
    with pytest.raises(TypeError, match=says("step: gradients", *facts)):
        training.Adam(theirs).step(ours, 0.1)
    with pytest.raises(TypeError, match=says("squared_error: targets", *facts)):
        training.squared_error(theirs, ours)


@pytest.mark.parametrize("scale", [1.0, 1e200])
def test_clipping_equals_that_on_the_host(cupy, scale):
    gradient = scale * np.random.default_rng(0).normal(size=100)
    theirs = cupy.asarray(gradient)
    norm = training.clip_gradient_norm(gradient, 1.0)
    assert_close("norm", training.clip_gradient_norm([theirs], 1.0) / norm, 1.0, "float64")
    assert_same("gradient", theirs, gradient)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("name", ["softmax_cross_entropy", "sigmoid_cross_entropy", "squared_error"])
def test_losses_equal_those_on_the_host(cupy, name, lengths, in_place):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(6, 4, 5)).astype("float32")
    targets = rng.integers(5, size=(6, 4)) if name == "softmax_cross_entropy" else (scores > 0).astype("float32")
    loss, function = getattr(training, name)(scores, targets, lengths), getattr(training, name)
    theirs = cupy.asarray(scores)
    found = function(theirs, cupy.asarray(targets), lengths, out=theirs if in_place else None)
    assert type(found.loss) is float
    assert_close("loss", found.loss, loss.loss, "float32")
    assert_same("gradient", found.gradient, loss.gradient)
    assert_same("losses", found.losses, loss.losses)


def test_readout_equals_that_on_the_host(cupy):
    rng = np.random.default_rng(0)
    w, x, dy = rng.normal(size=15), rng.normal(size=(6, 3, 4)), rng.normal(size=(6, 3, 3))
    their_w, their_x, their_dy = map(cupy.asarray, (w, x, dy))
    assert_same("y", training.dense(their_w, their_x, 3), training.dense(w, x, 3))
    found, expected = training.dense_backward(their_w, their_x, their_dy), training.dense_backward(w, x, dy)
    assert_same("dx", found.dx, expected.dx)
    assert_same("dw", found.dw, expected.dw)
    hy = rng.normal(size=(4, 3, 5))
    found, expected = training.last_output(cupy.asarray(hy), 2), training.last_output(hy, 2)
    assert_same("output", found, expected)
    assert_same("dhy", training.last_output_backward(found, 2, 2), training.last_output_backward(expected, 2, 2))


def test_padding_equals_that_on_the_host(cupy):
    sequences = [np.ones((length, 2)) for length in (3, 0, 5)]
    x, lengths = training.pad([cupy.asarray(sequence) for sequence in sequences])
    assert_same("x", x, training.pad(sequences)[0])
    assert type(lengths) is np.ndarray and lengths.tolist() == [3, 0, 5]
    for actual, expected in zip(training.unpad(x, lengths), sequences, strict=True):
        assert_same("sequence", actual, expected)
    mask = cupy.asarray(np.arange(5)[:, None] < lengths)
    assert training.lengths_of(mask).tolist() == [3, 0, 5]
