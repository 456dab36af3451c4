"""What the estimators learn, and from what: toy data, weights, an early stop, calls one after the other, equal bits."""

import sys

import numba
import numpy as np
import pytest
import threadpoolctl
from messages import says
from optional import needs
from tolerances import assert_close, assert_same_bits

from rnnkit.sklearn import RNNClassifier, RNNRegressor, fitting
from rnnkit.sklearn.model import Model
from rnnkit.sklearn.pooling import POOLINGS

MODES = "lstm", "gru", "rnn_tanh", "rnn_relu"


def waves(num_samples, seed=0, shortest=6, longest=20):
    """Sequences of a slow, a middle or a fast wave in noise, and beside it nothing but noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=num_samples)
    X = []
    for kind, length in zip(y, rng.integers(shortest, longest + 1, num_samples), strict=True):
        wave = np.sin(np.arange(length) * [0.3, 0.9, 1.8][kind] + rng.uniform(0, 7))
        X.append(np.stack([100 + 5 * wave, rng.normal(size=length)], axis=1) + rng.normal(0, 0.2, (length, 2)))
    return X, y


def assert_same_model(one, other):
    assert_same_bits("network", one.network_.weights, other.network_.weights)
    assert_same_bits("readout", one.readout_, other.readout_)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("mode", MODES)
def test_waves_are_told_apart(mode, pooling):
    X, y = waves(240)
    model = RNNClassifier(mode=mode, pooling=pooling, hidden_size=16, epochs=40, random_state=0).fit(X[:180], y[:180])
    assert model.score(X[180:], y[180:]) > 0.7  # by chance 0.33
    assert model.loss_curve_[0] > 2 * model.loss_curve_[-1]
    assert model.n_iter_ == 40 == len(model.loss_curve_)


def test_sums_of_different_scales_are_found():
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(length, 2)) for length in rng.integers(3, 10, 300)]
    y = np.array([[1e6 + 1e4 * sequence[:, 0].sum(), 1e-3 * sequence[-1, 1]] for sequence in X])
    model = RNNRegressor(hidden_size=32, epochs=60, random_state=0).fit(X[:250], y[:250])
    assert model.score(X[250:], y[250:]) > 0.9
    found = model.predict(X[250:])
    assert found.shape == (50, 2) and found.dtype == np.float64
    assert np.abs(found - y[250:]).mean(axis=0) == pytest.approx([0, 0], abs=5000) and np.ptp(found[:, 1]) > 1e-3


@pytest.mark.parametrize("shape", [(12,), (12, 1), (12, 3)])
def test_predictions_have_the_shape_of_the_targets(shape):
    X = np.ones((12, 2, 2))
    found = RNNRegressor(epochs=1, hidden_size=2).fit(X, np.full(shape, 7.5)).predict(X)
    assert found.shape == shape and found.dtype == np.float64
    assert np.abs(found - 7.5).max() < 1


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_list_equals_its_sequences_and_an_array(pooling, bidirectional):
    X, y = waves(40)
    settings = dict(pooling=pooling, bidirectional=bidirectional, hidden_size=4, epochs=2, random_state=0)
    settings["dtype"] = "float64"
    model = RNNClassifier(**settings).fit(X, y)
    found = model.predict_proba(X)
    alone = np.concatenate([model.predict_proba([sequence]) for sequence in X])
    assert_close("probabilities", found, alone, "float64")
    equal = np.array([sequence[:6] for sequence in X])
    one, other = RNNClassifier(**settings).fit(equal, y), RNNClassifier(**settings).fit(list(equal), y)
    assert_same_model(one, other)
    assert_same_bits("probabilities", one.predict_proba(equal), other.predict_proba(list(equal)))


def test_table_equals_sequences_of_single_features():
    table = np.random.default_rng(0).normal(size=(30, 5))
    y = (table[:, -1] > 0).astype(int)
    settings = dict(hidden_size=4, epochs=3, random_state=0)
    one, other = RNNClassifier(**settings).fit(table, y), RNNClassifier(**settings).fit(table[:, :, np.newaxis], y)
    assert_same_model(one, other)
    assert (one.n_features_in_, other.n_features_in_) == (5, 1)
    assert_same_bits("probabilities", one.predict_proba(table), other.predict_proba(table[:, :, np.newaxis]))
    assert_same_bits("of a list", one.predict_proba(list(table[:, :, np.newaxis])), one.predict_proba(table))
    assert_same_bits("of rows", one.predict_proba(table.tolist()), one.predict_proba(table))


@pytest.mark.cores(2)
@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
@pytest.mark.parametrize("settings", [dict(dropout=0.3, num_layers=2), dict(early_stopping=True), dict(pooling="max")])
def test_random_state_decides_every_bit(make, settings):
    X, y = waves(60)
    settings, before = dict(hidden_size=8, epochs=3) | settings, numba.get_num_threads()

    def model(random_state, threads=1, blas=1):
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        with threadpoolctl.threadpool_limits(blas, "blas"):
            found = make(random_state=random_state, **settings).fit(X, y)
        numba.set_num_threads(before)
        return found

    first = model(0)
    assert_same_model(first, model(0, 2, 2))
    assert_same_model(first, model(np.random.RandomState(0)))
    assert first.loss_curve_ == model(0).loss_curve_
    other = model(1)
    assert (other.network_.weights != first.network_.weights).mean() > 0.9
    assert make(**settings).fit(X, y).loss_curve_ != make(**settings).fit(X, y).loss_curve_


def test_each_epoch_has_its_own_batches(monkeypatch):
    found = []
    find = Model.find_gradient

    def recorded(self, sequences, numbers, objective, seed):
        found.append((tuple(numbers), seed))
        return find(self, sequences, numbers, objective, seed)

    monkeypatch.setattr(Model, "find_gradient", recorded)
    X, y = waves(50)
    RNNClassifier(hidden_size=2, epochs=3, batch_size=20, random_state=0).fit(X, y)
    assert len(found) == len({numbers for numbers, _ in found}) == len({seed for _, seed in found}) == 9
    for epoch in range(3):
        assert sorted(i for numbers, _ in found[3 * epoch : 3 * epoch + 3] for i in numbers) == list(range(50))


def test_loss_is_the_mean_over_samples():
    X, y = waves(50)  # with a learning rate of 0 no batch changes it
    model = RNNClassifier(hidden_size=2, epochs=3, batch_size=20, learning_rate=0.0, random_state=0).fit(X, y)
    expected = -np.log(model.predict_proba(X)[np.arange(50), y]).mean()
    assert_close("losses", np.array(model.loss_curve_), np.full(3, expected), "float32")


def test_readout_has_its_own_seed():
    X, y = waves(10)
    one, other = (
        RNNClassifier(hidden_size=2, epochs=1, learning_rate=0.0, random_state=seed).fit(X, y) for seed in (0, 1)
    )
    assert (one.readout_ != other.readout_).all()


def test_fit_begins_anew():
    X, y = waves(60)
    model = RNNClassifier(hidden_size=4, epochs=2, random_state=0, early_stopping=True)
    first = model.fit(X, y).network_.weights.copy()
    assert len(model.validation_curve_) == 2
    model.fit([sequence[:, :1] for sequence in X], y)
    assert model.n_features_in_ == 1
    assert_same_bits("weights", model.fit(X, y).network_.weights, first)
    assert not hasattr(model.set_params(early_stopping=False).fit(X, y), "validation_curve_")


@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
def test_weight_of_two_equals_a_sample_twice(make):
    X, y = waves(20)
    y = y if make is RNNClassifier else np.random.default_rng(0).normal(size=(20, 2))
    # In one batch of all:
    settings = dict(hidden_size=4, epochs=3, batch_size=100, random_state=0, dtype="float64", standardize=False)
    weights = np.arange(20) % 3
    weighted = make(**settings).fit(X, y, weights)
    repeated = make(**settings).fit([X[i] for i in np.repeat(range(20), weights)], np.repeat(y, weights, axis=0))
    if make is RNNClassifier:
        assert_close("weights", weighted.network_.weights, repeated.network_.weights, "float64")
    assert_close("losses", np.array(weighted.loss_curve_), np.array(repeated.loss_curve_), "float64")


@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
def test_sample_without_weight_is_ignored(make):
    X, y = waves(30)
    X[3] = X[3] * 1e6
    weights = np.ones(30)
    weights[3] = 0
    rest = [i for i in range(30) if i != 3]
    settings = dict(hidden_size=4, epochs=2, random_state=0, early_stopping=True)
    with_it = make(**settings).fit(X, y, weights)
    assert_same_model(with_it, make(**settings).fit([X[i] for i in rest], y[rest]))
    assert_same_model(with_it, make(**settings).fit(X, y, 1e-30 * weights))


def test_class_weights_multiply_sample_weights():
    X, y = waves(60)
    names = np.array(["a", "b", "c"])[y]
    settings = dict(hidden_size=4, epochs=3, random_state=0)
    plain = RNNClassifier(**settings)
    balanced = RNNClassifier(class_weight="balanced", **settings).fit(X, names)
    counts = np.bincount(y)
    assert_same_model(balanced, plain.fit(X, names, (60 / (3 * counts))[y]))
    given = RNNClassifier(class_weight={"a": 10.0, "c": 0}, **settings).fit(X, names, 1 + y)
    assert_same_model(given, plain.fit(X, names, (1 + y) * np.array([10.0, 1.0, 0.0])[y]))
    assert "c" not in given.predict(X)


def test_class_weight_moves_the_decision():
    X, y = np.ones((40, 2, 1)), np.arange(40) % 2  # one sequence for both classes: only shares can be learned
    model = RNNClassifier(class_weight={1: 3.0}, hidden_size=2, epochs=200, batch_size=40, random_state=0).fit(X, y)
    assert model.predict_proba(X[:1])[0] == pytest.approx([0.25, 0.75], abs=0.01)


def test_early_stop_returns_to_the_best_epoch():
    X, y = waves(80)
    y = np.where(np.arange(80) % 3, y, np.random.default_rng(0).integers(3, size=80))  # a third cannot be learned
    settings = dict(hidden_size=16, learning_rate=0.004, random_state=0, early_stopping=True, validation_fraction=0.25)
    model = RNNClassifier(epochs=200, n_iter_no_change=4, **settings).fit(X, y)
    curve = model.validation_curve_
    best = 1 + int(np.argmin(curve))
    assert len(curve) == len(model.loss_curve_) == model.n_iter_ == best + 4 < 200
    assert best > 2
    assert_same_model(model, RNNClassifier(epochs=best, n_iter_no_change=100, **settings).fit(X, y))
    longer = RNNClassifier(epochs=model.n_iter_, n_iter_no_change=100, **settings).fit(X, y)
    assert_same_model(model, longer)
    assert longer.validation_curve_ == curve


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.99])
def test_validation_part_has_shares_of_all_classes(fraction):
    classes = np.repeat([0, 1, 2], [50, 30, 20])
    train, held_out = fitting.split(classes, fraction, np.random.default_rng(0))
    assert sorted([*train, *held_out]) == list(range(100))
    assert len(held_out) == round(100 * fraction)
    assert np.abs(np.bincount(classes[held_out], minlength=3) - fraction * np.array([50, 30, 20])).max() <= 1
    others = fitting.split(classes, fraction, np.random.default_rng(1))[1]
    assert others.tolist() != held_out.tolist()


@pytest.mark.parametrize(("samples", "fraction", "sizes"), [(2, 0.99, [1, 1]), (5, 0.01, [4, 1])])
def test_both_parts_have_a_sample(samples, fraction, sizes):
    assert [*map(len, fitting.split(np.zeros(samples, int), fraction, np.random.default_rng(0)))] == sizes


def test_validation_part_is_not_trained_on():
    X, y = waves(40)
    settings = dict(hidden_size=4, epochs=2, random_state=0, early_stopping=True, validation_fraction=0.25)
    first = RNNRegressor(**settings).fit(X, y)
    _, held_out = fitting.split(np.zeros(40, int), 0.25, np.random.default_rng((first._seed, 0)))
    changed, moved = list(X), y.copy()
    for i in held_out:
        changed[i], moved[i] = -changed[i][::-1], 100
    other = RNNRegressor(**settings, n_iter_no_change=9).fit(changed, moved)
    assert first.loss_curve_ == other.loss_curve_ and first.validation_curve_ != other.validation_curve_
    assert_same_bits("mean", first.feature_mean_, other.feature_mean_)


@pytest.mark.parametrize("make", [RNNClassifier, RNNRegressor])
def test_epochs_equal_calls_of_partial_fit(make):
    X, y = waves(60)
    settings = dict(hidden_size=4, dropout=0.2, random_state=0)
    whole, parts = make(epochs=3, **settings).fit(X, y), make(**settings)
    for number in range(3):
        parts.partial_fit(X, y, **({"classes": [0, 1, 2]} if make is RNNClassifier and not number else {}))
    assert_same_model(whole, parts)
    assert parts.loss_curve_ == whole.loss_curve_


def test_partial_fit_keeps_classes_and_scales():
    X, y = waves(60)
    model = RNNClassifier(hidden_size=4, random_state=0).partial_fit(X[:20], np.zeros(20, int), classes=[2, 0, 1])
    assert model.classes_.tolist() == [0, 1, 2] and model.predict_proba(X).shape == (60, 3)
    mean = model.feature_mean_.copy()
    model.partial_fit([100 * sequence for sequence in X[20:]], y[20:], classes=[0, 1, 2])
    assert_same_bits("mean", model.feature_mean_, mean)


def test_partial_fit_goes_on_after_fit():
    X, y = waves(60)
    model = RNNClassifier(hidden_size=4, epochs=2, random_state=0).fit(X, y)
    before = model.network_.weights.copy()
    assert model.partial_fit(X, y).n_iter_ == 3
    change = np.abs(model.network_.weights - before)
    assert 0 < change.max() < 0.05


def test_features_are_standardized_or_not():
    X, y = waves(60)
    scaled = RNNClassifier(hidden_size=4, epochs=1, random_state=0, dtype="float64").fit(X, y)
    steps = np.concatenate(X)
    assert_close("means", scaled.feature_mean_, steps.mean(axis=0), "float64")
    assert_close("deviations", scaled.feature_scale_, steps.std(axis=0), "float64")
    by_hand = [(sequence - scaled.feature_mean_) / scaled.feature_scale_ for sequence in X]
    raw = RNNClassifier(hidden_size=4, epochs=1, random_state=0, dtype="float64", standardize=False).fit(by_hand, y)
    assert_same_model(scaled, raw)
    constant = [np.concatenate([sequence, np.full((len(sequence), 1), 0.1)], axis=1) for sequence in X]
    assert scaled.fit(constant, y).feature_scale_[2] == 1


def test_single_class_is_always_predicted():
    X, _ = waves(10)
    model = RNNClassifier(hidden_size=2, epochs=1).fit(X, ["only"] * 10)
    assert model.predict(X).tolist() == ["only"] * 10 and model.predict_proba(X).tolist() == [[1.0]] * 10


@pytest.mark.parametrize("early_stopping", [False, True])
def test_progress_bar_shows_losses(capsys, early_stopping):
    needs("tqdm")
    X, y = waves(20)
    RNNClassifier(hidden_size=2, epochs=3, verbose=True, early_stopping=early_stopping).fit(X, y)
    shown = capsys.readouterr().err
    assert "fit: 100%" in shown and "3/3" in shown and "loss=" in shown
    assert ("validation=" in shown) == early_stopping
    RNNClassifier(hidden_size=2, epochs=3).fit(X, y)
    assert capsys.readouterr() == ("", "")


def test_missing_tqdm_is_named_if_verbose(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    X, y = waves(20)
    RNNClassifier(hidden_size=2, epochs=1).fit(X, y)
    facts = "installed", "none", "pip install 'rnnkit[train]'", "verbose=False"
    with pytest.raises(ImportError, match=says("fit: the package tqdm", *facts)):
        RNNClassifier(hidden_size=2, epochs=1, verbose=True).fit(X, y)
