"""What the estimators refuse, message by message."""

from functools import partial

import numpy as np
import pytest
from messages import says
from refused import refusals
from sklearn.base import clone
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
MAKES = pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])


@MAKES
@pytest.mark.parametrize(("name", "value", "error", "facts"), SETTINGS)
def test_unfit_setting_is_refused(make, name, value, error, facts):
    model = make(**{name: value})
    options = {"classes": [0, 1]} if make is RNNClassifier else {}
    for call in model.fit, partial(model.partial_fit, **options):
        with pytest.raises(error, match=says(f"{make.__name__}: {name}", *facts)):
            call(X, Y)
    assert not hasattr(model, "network_")


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


@MAKES
@pytest.mark.parametrize(("wrong", "error", "argument", "facts"), SEQUENCES)
def test_unfit_sequences_are_refused(make, wrong, error, argument, facts):
    with pytest.raises(error, match=says(f"fit: {argument}", *facts)):
        make().fit(wrong, Y[: len(wrong)])
    with pytest.raises(error, match=says(f"predict: {argument}", *facts)):
        begun(make).predict(wrong)


def begun(make=RNNClassifier):
    return make(epochs=1, hidden_size=2).fit(X, Y)


def scaled(factor):
    return [factor * sequence for sequence in X]


RAW = RNNClassifier(epochs=1, hidden_size=2, standardize=False)
HELD_OUT = RNNRegressor(early_stopping=True)
MASKED = np.ma.ones((4, 3, 2))
ARGUMENTS = [
    (lambda: RNNClassifier(mode="elman").fit(X, Y), "RNNDescriptor: mode | lstm | 'elman'"),
    (lambda: RNNClassifier().fit([X[0], [[1, 2], [3]]], Y[:2]), "fit: X[1] | array of numbers"),
    (lambda: RNNClassifier().fit(MASKED, Y), "TypeError fit: X | numpy.ma.MaskedArray | X.filled(0) | lengths"),
    (lambda: RNNClassifier().fit(MASKED[..., 0], Y), "TypeError fit: X | numpy.ma.MaskedArray | X.filled(0) | lengths"),
    (
        lambda: RNNClassifier().fit([np.ma.ones((3, 2))] * 4, Y),
        "TypeError fit: X[0] | numpy.ma.MaskedArray | X[0].filled(0) | lengths",
    ),
    (lambda: begun().predict(np.ones((2, 4, 3))), "predict: X | num_features=2 | fit | 3"),
    (lambda: begun().predict_proba([np.ones((4, 3))]), "predict_proba: X | num_features=2 | fit | 3"),
    (lambda: begun().partial_fit(np.ones((4, 4, 3)), Y), "partial_fit: X | num_features=2 | fit | 3"),
    (lambda: begun().predict(X[0]), "predict: X | (seq_len, num_features=2) | 3 dimensions | fit | (3, 2) | [X]"),
    (lambda: RAW.fit(scaled(1e60), Y), 'fit: X | float32 | 1e+60 | dtype="float64"'),
    (lambda: RNNClassifier().fit(scaled(1e200), Y), "fit: X | standard deviation | inf"),
    (
        lambda: RNNRegressor().fit(X, np.ones((4, 1, 1))),
        "fit: y | (num_samples,) | (num_samples, num_targets) | (4, 1, 1)",
    ),
    (lambda: RNNRegressor().partial_fit(X, np.ones((4, 2))).partial_fit(X, Y), "partial_fit: y | num_targets=2 | 1"),
    (lambda: RNNClassifier().partial_fit(X, Y), "partial_fit: classes | first call | None | numpy.unique(y)"),
    (lambda: begun().partial_fit(X, Y, classes=[0, 1, 2]), "partial_fit: classes | first call | [0, 1] | [0, 1, 2]"),
    (
        lambda: RNNClassifier(class_weight="balanced").partial_fit(X, Y, classes=[0, 1]),
        "partial_fit: class_weight | None | dict | balanced | sample_weight",
    ),
    (lambda: HELD_OUT.partial_fit(X, Y), "partial_fit: early_stopping | False | True"),
    (lambda: HELD_OUT.fit(X[:1], Y[:1]), "fit: X | 2 samples | 1 | early_stopping=False"),
    (lambda: HELD_OUT.fit(X, Y, [0, 1, 0, 0]), "fit: X | 2 samples | 1 | early_stopping=False"),
]
CLASS_WEIGHTS = [
    ("even", "RNNClassifier: class_weight | None | balanced | dict | 'even'"),
    ([1, 2], "RNNClassifier: class_weight | None | balanced | dict | [1, 2]"),
    ({2: 1.0}, "RNNClassifier: class_weight[2] | [0, 1]"),
    ({0: -1.0}, "RNNClassifier: class_weight[0] | finite | 0 | -1.0"),
    ({0: "1"}, "TypeError RNNClassifier: class_weight[0] | number | str"),
]
TARGETS = [
    ([Y[:3]], "y | num_samples=4 | 3"),
    ([None], "y | None | requires y to be passed, but the target y is None"),
    ([Y, [1, 1, 1]], "sample_weight | (num_samples=4,) | (3,)"),
    ([Y, 2.0], "sample_weight | (num_samples=4,) | ()"),
    ([Y, [1, 1, -1, 1]], "sample_weight | finite | 0 | -1.0"),
    ([Y, [1, 1, float("nan"), 1]], "sample_weight | finite | 0 | nan"),
    ([Y, [1, 1, float("inf"), 1]], "sample_weight | finite | 0 | inf"),
    ([Y, [0] * 4], "sample_weight | 0 | zero"),
    ([Y, ["a"] * 4], "TypeError sample_weight | numbers"),
]


@refusals(
    anywhere=[
        *ARGUMENTS,
        *((partial(RNNClassifier(class_weight=given).fit, X, Y), text) for given, text in CLASS_WEIGHTS),
    ],
    fit=[(partial(make().fit, X, *given), text) for make in (RNNClassifier, RNNRegressor) for given, text in TARGETS],
)
def test_unfit_arguments_are_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


@MAKES
def test_messages_of_scikit_learn_are_kept(make):
    with pytest.raises(ValueError, match=f"{make.__name__} requires y to be passed, but the target y is None"):
        make().fit(X, None)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        make().fit(X, [0, 1, float("nan"), 1])
    with pytest.raises(NotFittedError, match=f"{make.__name__} instance is not fitted yet"):
        make().predict(X)
    with pytest.raises(NotFittedError, match="RNNClassifier instance is not fitted yet"):
        RNNClassifier().predict_proba(X)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        RNNClassifier().fit(X, [0.5, 1.5, 2.5, 3.5])


def test_refused_calls_do_not_bind_later_ones():
    assert clone(RAW).set_params(dtype="float64").fit(scaled(1e60), Y).n_iter_ == 1
    model = RNNClassifier(epochs=1, hidden_size=2)
    with pytest.raises(ValueError, match=says("partial_fit: y", [0, 2], 1)):
        model.partial_fit(X, Y, classes=[0, 2])
    assert model.partial_fit(X, Y, classes=[0, 1]).partial_fit(X, Y, classes=[1, 0]).n_iter_ == 2
    model = RNNRegressor(epochs=1, hidden_size=2)
    with pytest.raises(ValueError, match=says("fit: y", "standard deviation", "inf")):
        model.fit(X, [1e200, 0, 0, -1e200])
    assert model.partial_fit(X, np.ones((4, 2))).n_iter_ == 1


def test_failed_fit_leaves_no_model():
    model = RNNRegressor(mode="rnn_relu", hidden_size=4, epochs=3, random_state=0, standardize=False).fit(X, Y)
    with pytest.raises(ValueError, match=says("fit: learning_rate", 0.003, "inf", "epoch 1")):
        model.fit(scaled(1e30), 1e30 * np.array(Y))
    with pytest.raises(NotFittedError):
        model.predict(X)
