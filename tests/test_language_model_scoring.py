"""What a language model makes of a text, in bits per byte."""

import math

import numpy as np
import pytest
from language_models import bytes_of, fixed_model, naive_nats, small_model
from tolerances import assert_close

from rnnkit.language_model import scoring


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000, 64 * 256 + 1, 40_000])
@pytest.mark.parametrize("context", [0, 100])
def test_every_byte_counts_once(size, context):
    rng = np.random.default_rng(size)
    shares = rng.dirichlet(np.ones(256))
    text = bytes_of(size, size)
    bits = scoring.bits_per_byte(fixed_model(shares), text.tobytes(), b"before", context=context)
    assert_close("bits", bits, -np.log2(shares[text]).mean(), "float64")


@pytest.mark.parametrize("alphabet", [range(256), range(0, 256, 2)])
def test_bits_equal_a_step_by_step_reading(alphabet, monkeypatch):
    """Rows of 16 bytes in batches of 7 steps; each row has read the 5 bytes in front of it."""
    monkeypatch.setattr(scoring, "SHORTEST_ROW", 16)
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


def test_an_empty_text_has_no_bits():
    with pytest.raises(ValueError, match="bits_per_byte: text must have at least one byte, got none"):
        scoring.bits_per_byte(small_model(), b"")
