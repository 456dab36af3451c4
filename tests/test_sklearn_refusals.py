"""What the estimators refuse, message by message."""

import os

import numpy as np
import pytest
from messages import says

if os.environ.get("CI") != "true":  # in continuous integration these tests may not be skipped
    pytest.importorskip("sklearn")

from sklearn.exceptions import NotFittedError

from rnnkit.sklearn import RNNClassifier, RNNRegressor

X = [np.ones((3, 2)), np.zeros((1, 2)), np.ones((2, 2)), np.zeros((4, 2))]
Y = [0, 1, 0, 1]
ROWS = "(num_samples, seq_len, num_features)"
COLUMN = "sequence[:, numpy.newaxis]"


def nan_at(step):
    array = np.ones((3, 2))
    array[step] = np.nan
    return array


def assert_refuses(error, expected, function, *arguments, **options):
    with pytest.raises(error, match=expected):
        function(*arguments, **options)


SETTINGS = [
    ("hidden_size", 0, ValueError, [1, 0]),
    ("hidden_size", 2.0, TypeError, ["int", "float"]),
    ("num_layers", 0, ValueError, [1, 0]),
    ("num_layers", True, TypeError, ["int", "bool"]),
    ("epochs", 0, ValueError, [1, 0]),
    ("batch_size", -1, ValueError, [1, -1]),
    ("n_iter_no_change", 0, ValueError, [1, 0]),
    ("bidirectional", "yes", TypeError, ["bool", "str"]),
    ("early_stopping", 1, TypeError, ["bool", "int"]),
    ("standardize", None, TypeError, ["bool", "NoneType"]),
    ("verbose", "no", TypeError, ["bool", "int", "str"]),
    ("pooling", "sum", ValueError, ["last", "mean", "max", "'sum'"]),
    ("dtype", "float16", ValueError, ["float32", "float64", "'float16'"]),
    ("dropout", 1, ValueError, ["0 <= dropout < 1", 1]),
    ("dropout", float("nan"), ValueError, ["0 <= dropout < 1", "nan"]),
    ("dropout", "0.1", TypeError, ["number", "str"]),
    ("validation_fraction", 0, ValueError, ["0 < validation_fraction < 1", 0]),
    ("validation_fraction", 1.0, ValueError, ["0 < validation_fraction < 1", 1.0]),
    ("learning_rate", -0.1, ValueError, ["finite", 0, -0.1]),
    ("weight_decay", float("inf"), ValueError, ["finite", 0, "inf"]),
    ("clip_norm", 0, ValueError, [None, 0]),
]


@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
@pytest.mark.parametrize(("name", "value", "error", "facts"), SETTINGS)
def test_a_setting(make, name, value, error, facts):
    model = make(**{name: value})
    expected = says(f"{make.__name__}: {name}", *facts)
    assert_refuses(error, expected, model.fit, X, Y)
    options = {"classes": [0, 1]} if make is RNNClassifier else {}
    assert_refuses(error, expected, model.partial_fit, X, Y, **options)
    assert not hasattr(model, "network_")


def test_a_mode():
    with pytest.raises(ValueError, match=says("RNNDescriptor: mode", "lstm", "'elman'")):
        RNNClassifier(mode="elman").fit(X, Y)


SEQUENCES = [
    ([], ValueError, "X", ["sequence", "none"]),
    ([X[0], np.ones(3)], ValueError, "X[1]", ["(seq_len, num_features=2)", "X[0]", (3,), COLUMN]),
    ([np.ones(3), np.ones(2)], ValueError, "X[0]", ["(seq_len, num_features)", (3,), COLUMN]),
    ([X[0], np.ones((3, 1))], ValueError, "X[1]", ["(seq_len, num_features=2)", "X[0]", (3, 1)]),
    ([np.ones((1, 2, 3))], ValueError, "X[0]", ["(seq_len, num_features)", (1, 2, 3)]),
    ([X[0], np.ones((0, 2))], ValueError, "X[1]", ["step", "feature", (0, 2)]),
    ([X[0], np.ones((2, 2), complex)], TypeError, "X[1]", ["real numbers", "complex128"]),
    ([X[0], None], TypeError, "X[1]", ["real numbers", "object"]),
    ([X[0], [["a", "b"]]], TypeError, "X[1]", ["real numbers", "<U1"]),
    ([X[0], nan_at((1, 0))], ValueError, "X[1]", ["finite", "nan", [1, 0]]),
    ([X[0], np.full((1, 2), -np.inf)], ValueError, "X[1]", ["finite", "-inf", [0, 0]]),
    (np.ones((4, 0, 2)), ValueError, "X", [ROWS, (4, 0, 2)]),
    (np.ones((4, 2, 0)), ValueError, "X", [ROWS, (4, 2, 0)]),
    (np.stack([nan_at((2, 1))] * 4), ValueError, "X", ["finite", "nan", [0, 2, 1]]),
    (np.ones((4, 2, 2), object), TypeError, "X", ["real numbers", "object"]),
]


@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
@pytest.mark.parametrize(("wrong", "error", "argument", "facts"), SEQUENCES)
def test_sequences(make, wrong, error, argument, facts):
    assert_refuses(error, says(f"fit: {argument}", *facts), make().fit, wrong, Y[: len(wrong)])
    model = make(epochs=1, hidden_size=2).fit(X, Y)
    assert_refuses(error, says(f"predict: {argument}", *facts), model.predict, wrong)


def test_a_sequence_of_rows_of_different_lengths():
    with pytest.raises(ValueError, match=says("fit: X[1]", "array of numbers")):
        RNNClassifier().fit([X[0], [[1, 2], [3]]], Y[:2])


@pytest.mark.parametrize("wrong", [np.ma.ones((4, 3, 2)), np.ma.ones((4, 3))])
def test_a_masked_array(wrong):
    expected = says("fit: X", "numpy.ma.MaskedArray", "X.filled(0)", "lengths")
    assert_refuses(TypeError, expected, RNNClassifier().fit, wrong, Y)
    expected = says("fit: X[0]", "numpy.ma.MaskedArray", "X[0].filled(0)", "lengths")
    assert_refuses(TypeError, expected, RNNClassifier().fit, [np.ma.ones((3, 2))] * 4, Y)


def test_other_features_than_in_fit():
    model = RNNClassifier(epochs=1, hidden_size=2).fit(X, Y)
    facts = "num_features=2", "fit", 3
    assert_refuses(ValueError, says("predict: X", *facts), model.predict, np.ones((2, 4, 3)))
    assert_refuses(ValueError, says("predict_proba: X", *facts), model.predict_proba, [np.ones((4, 3))])
    assert_refuses(ValueError, says("partial_fit: X", *facts), model.partial_fit, np.ones((4, 4, 3)), Y)
    expected = says("predict: X", "(seq_len, num_features=2)", "3 dimensions", "fit", (3, 2), "[X]")
    assert_refuses(ValueError, expected, model.predict, X[0])


@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
def test_targets_and_weights(make):
    model = make(epochs=1, hidden_size=2)
    assert_refuses(ValueError, says("fit: y", "num_samples=4", 3), model.fit, X, Y[:3])
    cure = f"{make.__name__} requires y to be passed, but the target y is None"
    assert_refuses(ValueError, says("fit: y", None, cure), model.fit, X, None)
    weights = "fit: sample_weight"
    assert_refuses(ValueError, says(weights, "(num_samples=4,)", (3,)), model.fit, X, Y, [1, 1, 1])
    assert_refuses(ValueError, says(weights, "(num_samples=4,)", ()), model.fit, X, Y, 2.0)
    assert_refuses(ValueError, says(weights, "finite", 0, "-1.0"), model.fit, X, Y, [1, 1, -1, 1])
    assert_refuses(ValueError, says(weights, "finite", 0, "nan"), model.fit, X, Y, [1, 1, float("nan"), 1])
    assert_refuses(ValueError, says(weights, "finite", 0, "inf"), model.fit, X, Y, [1, 1, float("inf"), 1])
    assert_refuses(ValueError, says(weights, 0, "zero"), model.fit, X, Y, [0] * 4)
    with pytest.raises(TypeError, match=says(weights, "numbers")):
        model.fit(X, Y, ["a"] * 4)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        model.fit(X, [0, 1, float("nan"), 1])


def test_targets_of_a_regressor():
    model = RNNRegressor(epochs=1, hidden_size=2)
    expected = says("fit: y", "(num_samples,)", "(num_samples, num_targets)", (4, 1, 1))
    assert_refuses(ValueError, expected, model.fit, X, np.ones((4, 1, 1)))
    expected = says("fit: y", "standard deviation", "inf")
    assert_refuses(ValueError, expected, model.fit, X, [1e200, 0, 0, -1e200])
    model.partial_fit(X, np.ones((4, 2)))
    assert_refuses(ValueError, says("partial_fit: y", "num_targets=2", 1), model.partial_fit, X, Y)


def test_what_does_not_fit_into_the_dtype():
    big = [1e60 * sequence for sequence in X]
    model = RNNClassifier(epochs=1, hidden_size=2, standardize=False)
    assert_refuses(ValueError, says("fit: X", "float32", 1e60, 'dtype="float64"'), model.fit, big, Y)
    assert RNNClassifier(epochs=1, hidden_size=2, standardize=False, dtype="float64").fit(big, Y).n_iter_ == 1
    expected = says("fit: X", "standard deviation", "inf")
    assert_refuses(ValueError, expected, RNNClassifier().fit, [1e200 * sequence for sequence in X], Y)


def test_classes():
    model = RNNClassifier(epochs=1, hidden_size=2)
    expected = says("partial_fit: classes", "first call", None, "numpy.unique(y)")
    assert_refuses(ValueError, expected, model.partial_fit, X, Y)
    expected = says("partial_fit: y", [0, 2], 1)
    assert_refuses(ValueError, expected, model.partial_fit, X, Y, classes=[0, 2])
    model.partial_fit(X, Y, classes=[0, 1])
    expected = says("partial_fit: classes", "first call", [0, 1], [0, 1, 2])
    assert_refuses(ValueError, expected, model.partial_fit, X, Y, classes=[0, 1, 2])
    assert model.partial_fit(X, Y, classes=[1, 0]).n_iter_ == 2
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        model.fit(X, [0.5, 1.5, 2.5, 3.5])


@pytest.mark.parametrize(("given", "error", "argument", "facts"), [
    ("even", ValueError, "class_weight", [None, "balanced", "dict", "'even'"]),
    ([1, 2], ValueError, "class_weight", [None, "balanced", "dict", [1, 2]]),
    ({2: 1.0}, ValueError, "class_weight[2]", [[0, 1]]),
    ({0: -1.0}, ValueError, "class_weight[0]", ["finite", 0, -1.0]),
    ({0: "1"}, TypeError, "class_weight[0]", ["number", "str"]),
])
def test_weights_of_classes(given, error, argument, facts):
    expected = says(f"RNNClassifier: {argument}", *facts)
    assert_refuses(error, expected, RNNClassifier(class_weight=given).fit, X, Y)


def test_what_partial_fit_cannot_do():
    expected = says("partial_fit: class_weight", None, "dict", "balanced", "sample_weight")
    assert_refuses(ValueError, expected, RNNClassifier(class_weight="balanced").partial_fit, X, Y, classes=[0, 1])
    expected = says("partial_fit: early_stopping", False, True)
    assert_refuses(ValueError, expected, RNNRegressor(early_stopping=True).partial_fit, X, Y)


def test_one_sample_has_no_validation_part():
    expected = says("fit: X", "2 samples", 1, "early_stopping=False")
    assert_refuses(ValueError, expected, RNNRegressor(early_stopping=True).fit, X[:1], Y[:1])
    assert_refuses(ValueError, expected, RNNRegressor(early_stopping=True).fit, X, Y, [0, 1, 0, 0])


def test_a_gradient_that_is_not_finite():
    """And what has failed is no model, also where there was one."""
    model = RNNRegressor(mode="rnn_relu", hidden_size=4, epochs=3, random_state=0, standardize=False).fit(X, Y)
    huge = [1e30 * sequence for sequence in X]
    with pytest.raises(ValueError, match=says("fit: learning_rate", 0.003, "inf", "epoch 1")):
        model.fit(huge, 1e30 * np.array(Y))
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_before_fit(method):
    with pytest.raises(NotFittedError, match="RNNClassifier instance is not fitted yet"):
        getattr(RNNClassifier(), method)(X)
