"""The text that a language model writes."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from language_models import fixed_model, small_model
from messages import says

import rnnkit
from rnnkit.language_model.sampling import draw, generate


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
    shares = np.full(256, 1e-9)
    shares[[65, 66]] = 0.75, 0.25
    model = fixed_model(shares)
    drawn = list(itertools.islice(generate(model, b"x", 1.0, seed=0), 2000))
    # Four standard deviations of a binomial: 4 * sqrt(2000 * 0.75 * 0.25) = 77.
    assert abs(drawn.count(65) - 1500) < 77
    assert drawn.count(65) + drawn.count(66) == 2000
    assert drawn == list(itertools.islice(generate(model, b"x", 1.0, seed=0), 2000))
    assert drawn != list(itertools.islice(generate(model, b"x", 1.0, seed=1), 2000))


def test_generate_refuses_scores_that_are_not_numbers():
    model = small_model()
    model.parameters.network[:] = np.nan
    with pytest.raises(ValueError, match=says("generate: model", "NaN")):
        next(generate(model, b"x", 0.0))


def test_a_byte_that_is_ruled_out_is_no_error():
    shares = np.full(256, 1e-9)
    shares[65] = 1.0
    model = fixed_model(shares)
    model.parameters.output_bias[66:] = -np.inf
    assert list(itertools.islice(generate(model, b"x", 0.5, seed=0), 3)) == [65, 65, 65]


def test_top_p_draws_from_the_fewest_bytes_that_have_the_share():
    shares = np.full(256, 1e-9)
    shares[[65, 66, 67, 68]] = 0.4, 0.3, 0.2, 0.1
    model = fixed_model(shares)
    for top_p, count in ((0.05, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.91, 4)):
        drawn = set(itertools.islice(generate(model, b"x", 1.0, seed=0, top_p=top_p), 300))
        assert drawn == set(range(65, 65 + count)), top_p
    # At temperature 1/2 the shares are squared: 16, 9, 4, 1 of 30.
    for top_p, count in ((0.52, 1), (0.54, 2), (0.82, 2), (0.84, 3)):
        drawn = set(itertools.islice(generate(model, b"x", 0.5, seed=0, top_p=top_p), 300))
        assert drawn == set(range(65, 65 + count)), top_p


def test_all_bytes_are_drawn_from_without_top_p():
    """Also those whose share is lost in the sum of the others."""
    noise = SimpleNamespace(gumbel=lambda size: np.array([0.0, 1000.0]))
    assert draw(np.array([0.0, -50.0]), 1.0, 1.0, noise) == 1


@pytest.mark.parametrize("far", [1000.0, -1000.0])
def test_top_p_draws_from_scores_far_from_zero(far):
    noise = SimpleNamespace(gumbel=lambda size: np.array([0.0, 10.0, 100.0]))
    assert draw(far + np.log([0.5, 0.4, 0.1]), 1.0, 0.8, noise) == 1


def test_top_p_keeps_the_proportions_of_what_it_draws_from():
    shares = np.full(256, 0.4 / 254)
    shares[[65, 66]] = 0.4, 0.2
    drawn = list(itertools.islice(generate(fixed_model(shares), b"x", 1.0, seed=0, top_p=0.59), 2000))
    # Four standard deviations of a binomial: 4 * sqrt(2000 * 2 / 9) = 84.
    assert abs(drawn.count(65) - 2000 * 2 / 3) < 84
    assert drawn.count(65) + drawn.count(66) == 2000


def test_only_bytes_of_the_alphabet_are_written():
    model = small_model(alphabet=[66, 70, 255])
    model.parameters.output_bias[-1] = 100.0
    assert set(itertools.islice(generate(model, b"unknown", 1.0, seed=0), 200)) == {66, 70, 255}


@pytest.mark.parametrize(("arguments", "argument", "facts"), [
    ((b"", 1.0), "prompt", ["byte", "none"]),
    ((b"x", -1.0), "temperature", [0, "finite", -1.0]),
    ((b"x", float("inf")), "temperature", [0, "finite", "inf"]),
    ((b"x", 1.0, 0, 0.0), "top_p", [0, 1, 0.0]),
    ((b"x", 1.0, 0, 1.5), "top_p", [0, 1, 1.5]),
])
def test_generate_refuses_what_it_cannot_draw_with(arguments, argument, facts):
    with pytest.raises(ValueError, match=says(f"generate: {argument}", *facts)):
        generate(small_model(), *arguments)
