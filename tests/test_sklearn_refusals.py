"""What the estimators refuse, message by message."""

import os
import re

import numpy as np
import pytest

if os.environ.get("CI") != "true":  # in continuous integration these tests may not be skipped
    pytest.importorskip("sklearn")

from sklearn.exceptions import NotFittedError

from rnnkit.sklearn import RNNClassifier, RNNRegressor

X = [np.ones((3, 2)), np.zeros((1, 2)), np.ones((2, 2)), np.zeros((4, 2))]
Y = [0, 1, 0, 1]
ROWS = "have at least one sequence, one step and one feature in (num_samples, seq_len, num_features)"
COLUMN = "; give a sequence of single features as a column, with sequence[:, numpy.newaxis]"


def nan_at(step):
    array = np.ones((3, 2))
    array[step] = np.nan
    return array


def assert_refuses(error, message, function, *arguments, **options):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        function(*arguments, **options)


SETTINGS = [
    ("hidden_size", 0, ValueError, "be at least 1, got 0"),
    ("hidden_size", 2.0, TypeError, "be an int, got float"),
    ("num_layers", 0, ValueError, "be at least 1, got 0"),
    ("num_layers", True, TypeError, "be an int, got bool"),
    ("epochs", 0, ValueError, "be at least 1, got 0"),
    ("batch_size", -1, ValueError, "be at least 1, got -1"),
    ("n_iter_no_change", 0, ValueError, "be at least 1, got 0"),
    ("bidirectional", "yes", TypeError, "be a bool, got str"),
    ("early_stopping", 1, TypeError, "be a bool, got int"),
    ("standardize", None, TypeError, "be a bool, got NoneType"),
    ("verbose", "no", TypeError, "be a bool or an int, got str"),
    ("pooling", "sum", ValueError, "be \"last\" or \"mean\" or \"max\", got 'sum'"),
    ("dtype", "float16", ValueError, "be \"float32\" or \"float64\", got 'float16'"),
    ("dropout", 1, ValueError, "be in 0 <= dropout < 1, got 1"),
    ("dropout", float("nan"), ValueError, "be in 0 <= dropout < 1, got nan"),
    ("dropout", "0.1", TypeError, "be a number, got str"),
    ("validation_fraction", 0, ValueError, "be in 0 < validation_fraction < 1, got 0"),
    ("validation_fraction", 1.0, ValueError, "be in 0 < validation_fraction < 1, got 1.0"),
    ("learning_rate", -0.1, ValueError, "be a finite number of at least 0, got -0.1"),
    ("weight_decay", float("inf"), ValueError, "be a finite number of at least 0, got inf"),
    ("clip_norm", 0, ValueError, "be None or above 0, got 0"),
]


@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
@pytest.mark.parametrize(("name", "value", "error", "text"), SETTINGS)
def test_a_setting(make, name, value, error, text):
    model = make(**{name: value})
    assert_refuses(error, f"{make.__name__}: {name} must {text}", model.fit, X, Y)
    options = {"classes": [0, 1]} if make is RNNClassifier else {}
    assert_refuses(error, f"{make.__name__}: {name} must {text}", model.partial_fit, X, Y, **options)
    assert not hasattr(model, "network_")


def test_a_mode():
    with pytest.raises(ValueError, match="RNNDescriptor: mode must be .*, got 'elman'"):
        RNNClassifier(mode="elman").fit(X, Y)


SEQUENCES = [
    ([], ValueError, "X must hold at least one sequence, got none"),
    ([X[0], np.ones(3)], ValueError, f"X[1] must have shape (seq_len, num_features=2) as X[0] does, got (3,){COLUMN}"),
    ([np.ones(3), np.ones(2)], ValueError, f"X[0] must have shape (seq_len, num_features), got (3,){COLUMN}"),
    ([X[0], np.ones((3, 1))], ValueError, "X[1] must have shape (seq_len, num_features=2) as X[0] does, got (3, 1)"),
    ([np.ones((1, 2, 3))], ValueError, "X[0] must have shape (seq_len, num_features), got (1, 2, 3)"),
    ([X[0], np.ones((0, 2))], ValueError, "X[1] must have at least one step and one feature, got (0, 2)"),
    ([X[0], np.ones((2, 2), complex)], TypeError, "X[1] must hold real numbers, got dtype complex128"),
    ([X[0], None], TypeError, "X[1] must hold real numbers, got dtype object"),
    ([X[0], [["a", "b"]]], TypeError, "X[1] must hold real numbers, got dtype <U1"),
    ([X[0], nan_at((1, 0))], ValueError, "X[1] must be finite, got nan at [1, 0]"),
    ([X[0], np.full((1, 2), -np.inf)], ValueError, "X[1] must be finite, got -inf at [0, 0]"),
    (np.ones((4, 0, 2)), ValueError, f"X must {ROWS}, got (4, 0, 2)"),
    (np.ones((4, 2, 0)), ValueError, f"X must {ROWS}, got (4, 2, 0)"),
    (np.stack([nan_at((2, 1))] * 4), ValueError, "X must be finite, got nan at [0, 2, 1]"),
    (np.ones((4, 2, 2), object), TypeError, "X must hold real numbers, got dtype object"),
]


@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
@pytest.mark.parametrize(("wrong", "error", "text"), SEQUENCES)
def test_sequences(make, wrong, error, text):
    assert_refuses(error, f"fit: {text}", make().fit, wrong, Y[: len(wrong)])
    model = make(epochs=1, hidden_size=2).fit(X, Y)
    assert_refuses(error, f"predict: {text}", model.predict, wrong)


def test_a_sequence_of_rows_of_different_lengths():
    with pytest.raises(ValueError, match=r"^fit: X\[1\] must be an array of numbers, got what is none \("):
        RNNClassifier().fit([X[0], [[1, 2], [3]]], Y[:2])


@pytest.mark.parametrize("wrong", [np.ma.ones((4, 3, 2)), np.ma.ones((4, 3))])
def test_a_masked_array(wrong):
    cure = "a mask is not looked at: give X.filled(0), and lengths for padding"
    message = f"fit: X must be a plain array, got numpy.ma.MaskedArray; {cure}"
    assert_refuses(TypeError, message, RNNClassifier().fit, wrong, Y)
    message = message.replace(" X", " X[0]", 1).replace("give X", "give X[0]")
    assert_refuses(TypeError, message, RNNClassifier().fit, [np.ma.ones((3, 2))] * 4, Y)


def test_other_features_than_in_fit():
    model = RNNClassifier(epochs=1, hidden_size=2).fit(X, Y)
    message = "must have num_features=2 as in fit, got sequences of 3"
    assert_refuses(ValueError, f"predict: X {message}", model.predict, np.ones((2, 4, 3)))
    assert_refuses(ValueError, f"predict_proba: X {message}", model.predict_proba, [np.ones((4, 3))])
    assert_refuses(ValueError, f"partial_fit: X {message}", model.partial_fit, np.ones((4, 4, 3)), Y)
    expected = "be a list of (seq_len, num_features=2) arrays, or of 3 dimensions, as in fit"
    message = f"predict: X must {expected}, got a table of shape (3, 2); for one sequence give [X]"
    assert_refuses(ValueError, message, model.predict, X[0])


@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
def test_targets_and_weights(make):
    model = make(epochs=1, hidden_size=2)
    assert_refuses(ValueError, "fit: y must hold num_samples=4 targets, got 3", model.fit, X, Y[:3])
    cure = f"{make.__name__} requires y to be passed, but the target y is None"
    assert_refuses(ValueError, f"fit: y must hold a target for each sequence, got None; {cure}", model.fit, X, None)
    weights = "fit: sample_weight must"
    assert_refuses(ValueError, f"{weights} have shape (num_samples=4,), got (3,)", model.fit, X, Y, [1, 1, 1])
    assert_refuses(ValueError, f"{weights} have shape (num_samples=4,), got ()", model.fit, X, Y, 2.0)
    message = f"{weights} hold finite numbers of at least 0, got "
    assert_refuses(ValueError, f"{message}-1.0", model.fit, X, Y, [1, 1, -1, 1])
    assert_refuses(ValueError, f"{message}nan", model.fit, X, Y, [1, 1, float("nan"), 1])
    assert_refuses(ValueError, f"{message}inf", model.fit, X, Y, [1, 1, float("inf"), 1])
    assert_refuses(ValueError, f"{weights} hold a number above 0, got zero weights only", model.fit, X, Y, [0] * 4)
    with pytest.raises(TypeError, match="^fit: sample_weight must hold numbers, got what is none"):
        model.fit(X, Y, ["a"] * 4)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        model.fit(X, [0, 1, float("nan"), 1])


def test_targets_of_a_regressor():
    model = RNNRegressor(epochs=1, hidden_size=2)
    expected = "fit: y must have shape (num_samples,) or (num_samples, num_targets), got (4, 1, 1)"
    assert_refuses(ValueError, expected, model.fit, X, np.ones((4, 1, 1)))
    expected = "fit: y must have a finite standard deviation, got inf"
    assert_refuses(ValueError, expected, model.fit, X, [1e200, 0, 0, -1e200])
    model.partial_fit(X, np.ones((4, 2)))
    assert_refuses(
        ValueError, "partial_fit: y must have num_targets=2 as in the first call, got 1", model.partial_fit, X, Y
    )


def test_what_does_not_fit_into_the_dtype():
    big = [1e60 * sequence for sequence in X]
    model = RNNClassifier(epochs=1, hidden_size=2, standardize=False)
    assert_refuses(ValueError, 'fit: X must fit into float32, got 1e+60; give dtype="float64"', model.fit, big, Y)
    assert RNNClassifier(epochs=1, hidden_size=2, standardize=False, dtype="float64").fit(big, Y).n_iter_ == 1
    expected = "fit: X must have a finite standard deviation, got inf"
    assert_refuses(ValueError, expected, RNNClassifier().fit, [1e200 * sequence for sequence in X], Y)


def test_classes():
    model = RNNClassifier(epochs=1, hidden_size=2)
    cure = "give all that will come, as numpy.unique(y) of all data"
    message = f"partial_fit: classes must be given in the first call, got None; {cure}"
    assert_refuses(ValueError, message, model.partial_fit, X, Y)
    message = "partial_fit: y must hold classes of [0, 2], got 1"
    assert_refuses(ValueError, message, model.partial_fit, X, Y, classes=[0, 2])
    model.partial_fit(X, Y, classes=[0, 1])
    message = "partial_fit: classes must be those of the first call, [0, 1], got [0, 1, 2]"
    assert_refuses(ValueError, message, model.partial_fit, X, Y, classes=[0, 1, 2])
    assert model.partial_fit(X, Y, classes=[1, 0]).n_iter_ == 2
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        model.fit(X, [0.5, 1.5, 2.5, 3.5])


@pytest.mark.parametrize(("given", "error", "text"), [
    ("even", ValueError, "class_weight must be None, \"balanced\" or a dict, got 'even'"),
    ([1, 2], ValueError, 'class_weight must be None, "balanced" or a dict, got [1, 2]'),
    ({2: 1.0}, ValueError, "class_weight[2] must be of [0, 1], got another class"),
    ({0: -1.0}, ValueError, "class_weight[0] must be a finite number of at least 0, got -1.0"),
    ({0: "1"}, TypeError, "class_weight[0] must be a number, got str"),
])
def test_weights_of_classes(given, error, text):
    assert_refuses(error, f"RNNClassifier: {text}", RNNClassifier(class_weight=given).fit, X, Y)


def test_what_partial_fit_cannot_do():
    message = 'partial_fit: class_weight must be None or a dict, got "balanced"; give a dict, or sample_weight'
    assert_refuses(ValueError, message, RNNClassifier(class_weight="balanced").partial_fit, X, Y, classes=[0, 1])
    message = "partial_fit: early_stopping must be False, got True; judge the model between the calls"
    assert_refuses(ValueError, message, RNNRegressor(early_stopping=True).partial_fit, X, Y)


def test_one_sample_has_no_validation_part():
    message = "fit: X must hold at least 2 samples for early_stopping, got 1; give more, or early_stopping=False"
    assert_refuses(ValueError, message, RNNRegressor(early_stopping=True).fit, X[:1], Y[:1])
    assert_refuses(ValueError, message, RNNRegressor(early_stopping=True).fit, X, Y, [0, 1, 0, 0])


def test_a_gradient_that_is_not_finite():
    """And what has failed is no model, also where there was one."""
    model = RNNRegressor(mode="rnn_relu", hidden_size=4, epochs=3, random_state=0, standardize=False).fit(X, Y)
    huge = [1e30 * sequence for sequence in X]
    message = "^fit: learning_rate must .*, got 0.003 and a norm of inf in epoch 1; give a smaller one$"
    with pytest.raises(ValueError, match=message):
        model.fit(huge, 1e30 * np.array(Y))
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_before_fit(method):
    with pytest.raises(NotFittedError, match="RNNClassifier instance is not fitted yet"):
        getattr(RNNClassifier(), method)(X)
