"""Training the language model: its optimizer, its learning rate, its loop."""

import math

import numpy as np
import pytest
from language_models import small_model
from tolerances import assert_close

from rnnkit.language_model import corpus, training
from rnnkit.language_model.model import State


def test_adam_equals_the_paper(monkeypatch):
    monkeypatch.setattr(training.Adam, "BLOCK", 4)  # so that ten elements take more than one block
    rng = np.random.default_rng(4)
    parameters = rng.standard_normal(10)
    theta, m, v = parameters.tolist(), [0.0] * 10, [0.0] * 10
    optimizer = training.Adam(10, np.float64)
    for t, rate in enumerate((0.1, 0.2, 0.05), 1):
        gradient = rng.standard_normal(10)
        optimizer.update(parameters, gradient, rate)
        for i, g in enumerate(gradient):
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.99 * v[i] + 0.01 * g * g
            theta[i] -= rate * (m[i] / (1 - 0.9**t)) / (math.sqrt(v[i] / (1 - 0.99**t)) + 1e-8)
        assert_close("parameters", parameters, theta, "float64")


def test_clip_norm_shortens_only_what_is_too_long():
    gradient = np.array([3.0, 4.0])
    training.clip_norm(gradient, 6.0)
    assert gradient.tolist() == [3.0, 4.0]
    training.clip_norm(gradient, 1.0)
    assert_close("gradient", gradient, np.array([0.6, 0.8]), "float64")


def test_learning_rate_rises_and_falls_to_zero():
    settings = training.Settings(steps=100, seq_len=1, learning_rate=2.0, clip=1.0, seed=0)
    rates = [training.learning_rate(step, settings) for step in range(101)]
    assert rates[0] == 1.0
    assert rates[1] == max(rates) > 1.99
    assert rates[50] == pytest.approx(1.0)
    assert rates[100] == 0.0
    assert min(rates[:100]) > 0


def test_each_step_of_training_has_its_rate_and_a_dropout_mask_of_its_own(monkeypatch):
    """Learning rates and seeds as they are used, not as the functions beside them would give."""
    seeds, rates = [], []

    def record_seed(inputs, targets, state, count, seed):
        seeds.append(seed)
        return 0.0, State()

    monkeypatch.setattr(training.Adam, "update", lambda self, parameters, gradient, rate: rates.append(rate))
    settings = training.Settings(steps=60, seq_len=3, learning_rate=1.0, clip=1.0, seed=5)
    for _ in range(2):
        model = small_model()
        monkeypatch.setattr(model, "add_gradient", record_seed)
        list(training.train(model, corpus.rows(bytes(16), batch_size=2, seq_len=3), settings))
    assert rates == 2 * [training.learning_rate(step, settings) for step in range(60)]
    assert len(set(seeds[:60])) == 60
    assert seeds[60:] == seeds[:60]


def test_training_lowers_the_loss_and_repeats_its_bits():
    text = b"the quick brown fox jumps over the lazy dog. " * 40
    rows = corpus.rows(text, batch_size=4, seq_len=16)
    settings = training.Settings(steps=80, seq_len=16, learning_rate=5e-2, clip=1.0, seed=3)
    models = [small_model("gru", "float32", seed=0) for _ in range(2)]
    losses = [list(training.train(model, rows, settings)) for model in models]
    assert losses[0][0] > 5 > 3 > losses[0][-1]
    assert losses[0] == losses[1]
    assert models[0].parameters.flat.tobytes() == models[1].parameters.flat.tobytes()


def test_training_starts_each_pass_from_a_zero_state_and_carries_it_on_within(monkeypatch):
    model = small_model()
    seen = []

    def record(inputs, targets, state, count, seed):
        seen.append(state)
        return 0.0, State(len(seen))

    monkeypatch.setattr(model, "add_gradient", record)
    rows = corpus.rows(bytes(16), batch_size=2, seq_len=3)
    settings = training.Settings(steps=4, seq_len=3, learning_rate=1.0, clip=1.0, seed=0)
    assert list(training.train(model, rows, settings)) == [0.0] * 4
    assert seen == [State(), State(1), State(), State(3)]
