"""The text that a language model writes."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from language_models import fixed_model, small_model
from messages import says
from refused import refusals

import rnnkit
from rnnkit.language_model.sampling import draw, generate


def drawn(model, count, temperature=1.0, prompt=b"x", **options):
    return list(itertools.islice(generate(model, prompt, temperature, **{"seed": 0} | options), count))


def model_of(shares, rest=1e-9):
    """A model that gives bytes from 65 on these shares."""
    every = np.full(256, rest)
    every[65 : 65 + len(shares)] = shares
    return fixed_model(every)


@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_generate_at_zero_temperature_takes_the_likeliest_byte(mode):
    model = small_model(mode)
    prompt = b"ab"
    read = list(prompt)
    for byte in itertools.islice(generate(model, prompt, 0.0), 10):
        x = model.inputs(np.array(read)[:, None])
        y = rnnkit.infer(model.desc, model.parameters.network, x).y[-1]
        assert byte == model.scores(y)[0].argmax()
        read.append(byte)


def test_generate_draws_from_the_distribution():
    model = model_of([0.75, 0.25])
    found = drawn(model, 2000)
    # Four standard deviations of a binomial: 4 * sqrt(2000 * 0.75 * 0.25) = 77.
    assert abs(found.count(65) - 1500) < 77
    assert found.count(65) + found.count(66) == 2000
    assert found == drawn(model, 2000) != drawn(model, 2000, seed=1)


def test_generate_refuses_scores_that_are_not_numbers():
    model = small_model()
    model.parameters.network[:] = np.nan
    with pytest.raises(ValueError, match=says("generate: model", "NaN")):
        next(generate(model, b"x", 0.0))


def test_byte_of_probability_zero_is_never_drawn():
    model = model_of([1.0])
    model.parameters.output_bias[66:] = -np.inf
    assert drawn(model, 3, 0.5) == [65, 65, 65]


@pytest.mark.parametrize(
    ("temperature", "counts"),
    [
        (1.0, {0.05: 1, 0.39: 1, 0.41: 2, 0.69: 2, 0.71: 3, 0.91: 4}),
        (0.5, {0.52: 1, 0.54: 2, 0.82: 2, 0.84: 3}),  # the shares are squared: 16, 9, 4, 1 of 30
    ],
)
def test_top_p_draws_from_the_fewest_bytes_that_have_the_share(temperature, counts):
    model = model_of([0.4, 0.3, 0.2, 0.1])
    for top_p, count in counts.items():
        assert set(drawn(model, 300, temperature, top_p=top_p)) == set(range(65, 65 + count)), top_p


def test_improbable_byte_can_be_drawn_without_top_p():
    """Even one whose share is lost in the sum of the others."""
    noise = SimpleNamespace(gumbel=lambda size: np.array([0.0, 1000.0]))
    assert draw(np.array([0.0, -50.0]), 1.0, 1.0, noise) == 1


@pytest.mark.parametrize("far", [1000.0, -1000.0])
def test_top_p_draws_from_scores_far_from_zero(far):
    noise = SimpleNamespace(gumbel=lambda size: np.array([0.0, 10.0, 100.0]))
    assert draw(far + np.log([0.5, 0.4, 0.1]), 1.0, 0.8, noise) == 1


def test_top_p_keeps_proportions_among_the_drawn_bytes():
    found = drawn(model_of([0.4, 0.2], 0.4 / 254), 2000, top_p=0.59)
    # Four standard deviations of a binomial: 4 * sqrt(2000 * 2 / 9) = 84.
    assert abs(found.count(65) - 2000 * 2 / 3) < 84
    assert found.count(65) + found.count(66) == 2000


def test_only_bytes_of_the_alphabet_are_drawn():
    model = small_model(alphabet=[66, 70, 255])
    model.parameters.output_bias[-1] = 100.0
    assert set(drawn(model, 200, prompt=b"unknown")) == {66, 70, 255}


@refusals(
    generate=[
        (lambda: generate(small_model(), b"", 1.0), "prompt | byte | none"),
        (lambda: generate(small_model(), b"x", -1.0), "temperature | 0 | finite | -1.0"),
        (lambda: generate(small_model(), b"x", float("inf")), "temperature | 0 | finite | inf"),
        (lambda: generate(small_model(), b"x", 1.0, 0, 0.0), "top_p | 0 | 1 | 0.0"),
        (lambda: generate(small_model(), b"x", 1.0, 0, 1.5), "top_p | 0 | 1 | 1.5"),
    ]
)
def test_generate_refuses_bad_arguments(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()
