"""What a language model makes of a text, in bits per byte."""

import itertools
import math

import numpy as np
import pytest
from combinations import nightly
from language_models import bytes_of, fixed_model, naive_nats, small_model
from messages import says
from tolerances import assert_close

import rnnkit
from rnnkit.cells import SLSTM, LayerNormLSTM
from rnnkit.language_model import scoring
from rnnkit.language_model.model import TextModel


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000, 64 * 256 + 1, 40_000])
@pytest.mark.parametrize("context", [0, 100])
def test_every_byte_counts_once(size, context):
    rng = np.random.default_rng(size)
    shares = rng.dirichlet(np.ones(256))
    text = bytes_of(size, size)
    bits = scoring.bits_per_byte(fixed_model(shares), text.tobytes(), b"before", context=context)
    assert_close("bits", bits, -np.log2(shares[text]).mean(), "float64")


@pytest.mark.parametrize("alphabet", [range(256), range(0, 256, 2)])
def test_bits_equal_the_naive_step_by_step_sum(alphabet, monkeypatch):
    """Rows of 16 bytes in batches of 7 steps; each row has read the 5 bytes in front of it."""
    monkeypatch.setattr(scoring, "MIN_ROW", 16)
    monkeypatch.setattr(scoring, "SEQ_LEN", 7)
    model = small_model(alphabet=alphabet)
    text, before = bytes_of(6, 40).tobytes(), b"uvwxyz"
    expected = []
    for start in range(0, 40, 16):
        read = (before + text)[start : start + 6 + 16]
        expected += naive_nats(model, read)[5:]
    bits = scoring.bits_per_byte(model, text, before, context=5)
    assert_close("bits", bits, np.mean(expected) / math.log(2), "float64")


def test_line_ends_stand_in_front_of_a_text():
    model = small_model()
    text = bytes_of(7, 20).tobytes()
    expected = np.mean(naive_nats(model, b"\n\n\n\nyz" + text)[5:]) / math.log(2)
    assert_close("bits", scoring.bits_per_byte(model, text, b"yz", context=5), expected, "float64")


@pytest.mark.parametrize("score", [scoring.bits_per_byte, scoring.adaptive_bits_per_byte])
def test_empty_text_is_refused(score):
    with pytest.raises(ValueError, match=says(f"{score.__name__}: text", "byte", "none")):
        score(small_model(), b"")


@pytest.mark.parametrize("size", [1, 3, 31, 33, 1024, 4099])
@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_dynamic_evaluation_at_rate_zero_equals_static_rows(size, mode, monkeypatch):
    """Those rows are each read after what is before the text."""
    monkeypatch.setattr(scoring, "RATE", 0.0)
    model = small_model(mode, alphabet=range(0, 256, 2), dropout=0.5)
    text, before = bytes_of(8, size).tobytes(), b"uvwxyz"
    num_rows = max(1, min(2, size // 1024))
    bounds = [size // num_rows * number for number in range(num_rows)] + [size]
    expected = []
    for start, stop in itertools.pairwise(bounds):
        expected += naive_nats(model, b"vwxyz" + text[start:stop])[4:]
    bits = scoring.adaptive_bits_per_byte(model, text, before, context=4)
    assert_close("bits", bits, np.mean(expected) / math.log(2), "float64")


def test_dynamic_evaluation_lowers_the_bits_of_a_repeated_text(monkeypatch):
    monkeypatch.setattr(scoring, "RATE", 0.05)  # for so small a model
    model = small_model("gru")
    weights = model.parameters.flat.copy()
    text = b"one text that comes again and again, 12 or 13 times; " * 60
    adapted, static = scoring.adaptive_bits_per_byte(model, text), scoring.bits_per_byte(model, text)
    assert adapted < static - 1.5
    assert np.array_equal(model.parameters.flat, weights)
    assert scoring.adaptive_bits_per_byte(model, bytes_of(9, 3000).tobytes()) > 8


def test_each_byte_is_predicted_before_it_is_learned_from(monkeypatch):
    """What a byte costs does not depend on the bytes that come with it, in its step or later, in any row."""
    model = small_model("gru")
    model.parameters.flat[:] *= 3
    text = bytes_of(10, 2 * 1024).reshape(2, 1024)
    costs, cleared, add_gradient = [], [], TextModel.add_gradient

    def recorded(self, *arguments, **named):
        cleared.append(not self.gradient.flat.any())
        found = add_gradient(self, *arguments, **named)
        costs.append(found[0])
        return found

    monkeypatch.setattr(TextModel, "add_gradient", recorded)
    scoring.adaptive_bits_per_byte(model, text.tobytes())
    changed = text.copy()
    changed[:, 96:] = 7  # from the fourth step on
    first = costs[:3]
    costs.clear()
    scoring.adaptive_bits_per_byte(model, changed.tobytes())
    assert costs[:3] == first and costs[3] != first[-1]
    assert all(cleared)


@pytest.mark.parametrize(
    "changes", [{"dropout": 0.5}, nightly({"mode": LayerNormLSTM(recurrent_dropout=0.5, zoneout=0.3)})]
)
def test_dynamic_evaluation_draws_no_noise(changes):
    model, text = small_model(**changes), bytes_of(9, 300).tobytes()
    assert scoring.adaptive_bits_per_byte(model, text) == scoring.adaptive_bits_per_byte(model, text)


def test_dynamic_evaluation_of_a_cell_of_several_states():
    model = TextModel.random(rnnkit.RNNDescriptor(SLSTM(sigmoid_forget=True), 3, 4, dtype="float64"), 0)
    text = b"in and out, " * 400  # two rows that learn
    names = {name: bits for name, bits in scoring.scores(model, text) if name.startswith("rnnkit")}
    assert names["rnnkit, dynamic evaluation"] < names["rnnkit"] - 0.1
