"""The estimators within scikit-learn: its own checks, clones, pickles, searches, pipelines; and their documentation."""

import inspect
import io
import pickle

import numpy as np
import pytest
from docstring_rules import assert_documents_its_parameters, assert_typed, section
from optional import needs
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from tolerances import assert_same_bits

from rnnkit.cells import RegularizedLSTM
from rnnkit.sklearn import RNNClassifier, RNNRegressor

LEARNER = RNNClassifier(hidden_size=8, epochs=10, random_state=0)
SMALL = [RNNClassifier(hidden_size=16, epochs=30), RNNRegressor(hidden_size=16, epochs=60)]
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "batches are drawn: a sample that is there twice is not always in "
    "the batch in which one of weight 2 is",
}


def label(value):
    while hasattr(value, "func"):  # a partial of a partial
        value = value.func
    return type(value).__name__ if hasattr(value, "get_params") else value.__name__


def checks():
    for estimator in SMALL:
        for own, check in estimator_checks_generator(estimator):
            reason = EXPECTED.get(label(check))
            marks = [pytest.mark.xfail(reason=reason)] if reason else []
            yield pytest.param(own, check, id=f"{label(own)}-{label(check)}", marks=marks)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_check_of_scikit_learn_passes(estimator, check):
    check(estimator)


def toy(num_samples=60, seed=0):
    """Whether the first feature grows; lengths of 3 to 9."""
    rng = np.random.default_rng(seed)
    X = [rng.normal(size=(length, 2)) for length in rng.integers(3, 10, num_samples)]
    slopes = rng.choice([-1.0, 1.0], num_samples)
    for sequence, slope in zip(X, slopes, strict=True):
        sequence[:, 0] += slope * np.arange(len(sequence))
    return X, np.where(slopes > 0, "up", "down")


def fitted(**settings):
    X, y = toy()
    return RNNClassifier(**{"hidden_size": 8, "epochs": 5, "random_state": 0} | settings).fit(X, y), X


@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
def test_clone_has_the_settings_and_no_model(make):
    own = make(mode="lstm", hidden_size=3, num_layers=2, bidirectional=True, dropout=0.5, pooling="max", epochs=7)
    copy = clone(own)
    assert copy.get_params() == own.get_params()
    assert copy.get_params()["hidden_size"] == 3 and copy.get_params()["pooling"] == "max"
    assert not hasattr(copy, "network_")


def test_settings_are_kept_as_they_were_given():
    names = set(inspect.signature(RNNClassifier.__init__).parameters) - {"self"}
    assert names - set(inspect.signature(RNNRegressor.__init__).parameters) == {"class_weight"}
    for make in RNNClassifier, RNNRegressor:
        given = {name: object() for name in inspect.signature(make.__init__).parameters if name != "self"}
        found = make(**given).get_params()
        assert all(found[name] is value for name, value in given.items())
    defaults = RNNRegressor().get_params()
    assert {name: value for name, value in RNNClassifier().get_params().items() if name != "class_weight"} == defaults


@pytest.mark.parametrize("how", ["pickle", "joblib"])
def test_pickle_predicts_and_learns_on(how):
    model, X = fitted(dropout=0.2)
    y = model.predict(X)
    model.partial_fit(X, y)  # the optimizer's moments travel too
    if how == "pickle":
        again = pickle.loads(pickle.dumps(model))
    else:
        joblib = needs("joblib")
        file = io.BytesIO()
        joblib.dump(model, file)
        again = joblib.load(io.BytesIO(file.getvalue()))
    assert_same_bits("probabilities", again.predict_proba(X), model.predict_proba(X))
    assert_same_bits("after a call", again.partial_fit(X, y).predict_proba(X), model.partial_fit(X, y).predict_proba(X))
    assert again.loss_curve_ == model.loss_curve_ and len(again.loss_curve_) == 7


def test_noisy_cell_learns_by_its_seed_and_can_be_copied():
    cell = RegularizedLSTM(recurrent_dropout=0.2)
    model, X = fitted(mode=cell, epochs=20)
    y = toy()[1]
    assert model.score(X, y) > 0.9 and model.network_.desc.mode == cell
    assert_same_bits("again", model.predict_proba(X), model.predict_proba(X))
    assert_same_bits("the same seed", fitted(mode=cell, epochs=20)[0].predict_proba(X), model.predict_proba(X))
    assert clone(model).get_params()["mode"] == cell
    again = pickle.loads(pickle.dumps(model))
    assert_same_bits("a pickle", again.predict_proba(X), model.predict_proba(X))
    grid = {"mode": ["gru", cell, RegularizedLSTM(zoneout=0.1)], "epochs": [2]}
    assert len(GridSearchCV(RNNClassifier(random_state=0), grid, cv=2).fit(X, y).cv_results_["params"]) == 3


def test_search_in_two_processes_gives_the_same_bits():
    X, y = toy()
    grid = {"hidden_size": [1, 8], "pooling": ["last", "mean"]}
    search, alone = (
        GridSearchCV(RNNClassifier(epochs=10, random_state=0), grid, cv=3, n_jobs=jobs).fit(X, y) for jobs in (2, None)
    )
    assert search.best_score_ > 0.9
    assert_same_bits("scores", search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"])
    assert_same_bits("probabilities", search.predict_proba(X), alone.predict_proba(X))


@pytest.mark.parametrize("make", [list, lambda X: np.array([*X, None], object)[:-1], tuple])
def test_lists_of_any_kind_are_split(make):
    X, y = toy()
    train, test, y_train, y_test = train_test_split(make(X), y, random_state=0)
    assert clone(LEARNER).fit(train, y_train).score(test, y_test) > 0.9
    assert cross_val_score(LEARNER, make(X), y, cv=2).min() > 0.8


def test_pipelines_learn_from_lists_and_tables():
    X, y = toy()
    first = FunctionTransformer(lambda X: [sequence[:, :1] for sequence in X])
    model = make_pipeline(first, clone(LEARNER)).fit(X, y)
    assert model[-1].n_features_in_ == 1 and model.score(X, y) > 0.9
    table = np.array([np.resize(sequence[:, 0], 9) for sequence in X])
    model = make_pipeline(StandardScaler(), clone(LEARNER)).fit(table, y)
    assert model[-1].n_features_in_ == 9 and model[-1].network_.desc.input_size == 1 and model.score(table, y) > 0.9


def test_fit_forgets_names_of_columns():
    X, y = toy()
    model = RNNClassifier(hidden_size=2, epochs=1)
    model.feature_names_in_ = np.array(["a", "b"], object)
    assert not hasattr(model.fit(X, y), "feature_names_in_")


def test_tags_tell_inputs_and_targets():
    for make in RNNClassifier, RNNRegressor:
        tags = make().__sklearn_tags__()
        assert tags.input_tags.three_d_array and tags.input_tags.two_d_array
        assert not (tags.input_tags.allow_nan or tags.input_tags.sparse or tags.non_deterministic)
        assert tags.target_tags.multi_output == (make is RNNRegressor)


@pytest.mark.parametrize("name", ["__init__", "fit", "partial_fit", "predict", "predict_proba"])
@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
def test_methods_are_typed_and_documented(make, name):
    function = getattr(make, name, None)
    assert (function is None) == (make is RNNRegressor and name == "predict_proba")
    if function:
        doc = make.__doc__ if name == "__init__" else function.__doc__
        assert_documents_its_parameters(function, doc)
        assert_typed(function)
        assert name == "__init__" or section(doc, "Returns") and section(doc, "Raises")


@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
def test_attributes_are_documented(make):
    X, _ = toy(20)
    model = make(epochs=1, hidden_size=2, early_stopping=True).fit(X, np.arange(20) % 2)
    found = {name for name in vars(model) if name.endswith("_") and not name.startswith("_")}
    assert found == set(section(make.__doc__, "Attributes"))
