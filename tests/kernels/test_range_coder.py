"""Range coding by integer frequencies: symbols come back, in as many bits as their probabilities say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import says

from rnnkit.compression import RangeDecoder, RangeEncoder, frequencies

TOTAL = 2**18
SIZES = [1, 2, 3, 15, 16, 17, 255, 256, 257, 1000]


def naive_frequencies(scores):
    """Number by number, with another exponential."""
    found = []
    for row in scores:
        weights = [int(np.exp(np.float64(score) - np.float64(row.max())) * 2**22) for score in row]
        found.append([1 + int(weight * ((TOTAL - len(row)) / (1 + sum(weights)))) for weight in weights])
    return np.array(found)


def encoded(symbols, table, at_once=7):
    encoder = RangeEncoder()
    for start in range(0, len(table), at_once):
        encoder.encode(symbols[start : start + at_once], table[start : start + at_once])
    return encoder.finish()


def decoded(payload, table, at_once=5):
    decoder = RangeDecoder(payload)
    parts = [decoder.decode(table[start : start + at_once]) for start in range(0, len(table), at_once)]
    return np.concatenate([np.empty(0, np.int64), *parts])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_frequencies_follow_the_rule(size, dtype):
    rng = np.random.default_rng(size)
    scores = (rng.standard_normal((6, size)) * np.array([[0], [0.1], [1], [5], [30], [300]])).astype(dtype)
    table = frequencies(scores)
    assert table.dtype == np.int32 and table.min() >= 1 and table.sum(axis=1).max() <= TOTAL
    assert (table.sum(axis=1) > TOTAL - 2 * size).all()
    assert abs(table - naive_frequencies(scores)).max() <= 1 + (dtype == "float32")  # exp's last bit


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_scores_have_frequencies(bad):
    scores = np.zeros((2, 5))
    scores[0, 2] = bad
    table = frequencies(scores)
    assert table.min() >= 1 and table.sum(axis=1).max() <= TOTAL
    assert (table[1] == frequencies(np.zeros((1, 5)))).all()
    if bad == -np.inf:
        assert table[0, 2] == 1 and (table[0, [0, 1, 3, 4]] > 65000).all()


@pytest.mark.parametrize("count", [0, 1, 5, 400])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [0, 2, 40])
def test_symbols_come_back_from_a_short_code(size, count, scale):
    rng = np.random.default_rng(count)
    table = frequencies(rng.standard_normal((count, size)) * scale)
    symbols = np.array([rng.choice(size, p=row / row.sum()) for row in table], np.int64)
    payload = encoded(symbols, table)
    np.testing.assert_array_equal(decoded(payload, table), symbols)
    shortest = -np.log2(table[np.arange(count), symbols] / table.sum(axis=1)).sum()
    assert 8 * len(payload) <= 1.003 * shortest + 40


@given(st.lists(st.tuples(st.sampled_from([1, 2, 255, 2**17, TOTAL - 3]), st.integers(0, 3)), max_size=60))
def test_carries_and_rare_symbols_come_back(draws):
    """A symbol at the range's upper end, again and again, makes carries that run through many bytes."""
    table = np.array([[most, 1, 1, 1] for most, _ in draws], np.int32).reshape(-1, 4)
    symbols = np.array([symbol for _, symbol in draws], np.int64)
    np.testing.assert_array_equal(decoded(encoded(symbols, table), table), symbols)


def test_symbol_of_frequency_0_is_refused():
    table, symbols = np.array([[5, 0, 7]] * 40, np.int32), np.tile([0, 2], 20)
    np.testing.assert_array_equal(decoded(encoded(symbols, table), table), symbols)
    with pytest.raises(ValueError, match=says("encode: table", "frequency", 0)):
        RangeEncoder().encode([1], table[:1])


def test_any_bytes_decode_to_symbols():
    rng = np.random.default_rng(0)
    table = frequencies(rng.standard_normal((50, 9)) * 10)
    for size in (0, 1, 3, 20):
        found = decoded(rng.bytes(size), table)
        assert ((found >= 0) & (found < 9)).all()


TABLE = np.full((2, 3), 7, np.int32)
TABLES = [
    ([[1]], TypeError, ["numpy.ndarray", "list"]),
    (TABLE.astype(np.int64), TypeError, ["int32", "int64"]),
    (TABLE[0], ValueError, ["C-contiguous", "(n, 1..65536)", (3,)]),
    (TABLE[:, ::2], ValueError, ["C-contiguous", (2, 2)]),
    (TABLE[:, :0], ValueError, ["C-contiguous", (2, 0)]),
    (TABLE * -1, ValueError, ["1..262144", -21]),
    (TABLE * 0, ValueError, ["1..262144", "0 to 0"]),
    (TABLE * 2**16, ValueError, ["1..262144", 1376256]),
    (TABLE * 2**28, ValueError, ["1..262144", 5637144576]),
]
SCORES = [
    ([[0.0]], TypeError, ["numpy.ndarray", "list"]),
    (np.zeros((2, 3), int), TypeError, ["float32", "float64", "int64"]),
    (np.zeros(3), ValueError, ["(n, 1..65536)", (3,)]),
    (np.zeros((1, 0)), ValueError, ["(n, 1..65536)", (1, 0)]),
]
CLASSES = [
    ([0.0, 1.0], ValueError, ["1..65536", "integers", "float64", (2,)]),
    ([[0, 1]], ValueError, ["1..65536", (1, 2)]),
    (np.zeros(0, int), ValueError, ["1..65536", (0,)]),
    (np.zeros(2**16 + 1, np.int8), ValueError, ["1..65536", (65537,)]),
    ([0, -1], ValueError, ["0..65535", -1]),
    ([0, 2**16], ValueError, ["0..65535", "65536"]),
    (np.array([0, 2**63], np.uint64), ValueError, ["0..65535", str(2**63)]),
    ([0, 1, 1, 2], ValueError, ["last class", "2 in class 1"]),
]
CALLS = {
    "encode: table": (lambda wrong: RangeEncoder().encode([0, 1], wrong), TABLES),
    "decode: table": (lambda wrong: RangeDecoder(b"").decode(wrong), TABLES),
    "frequencies: scores": (frequencies, SCORES),
    "RangeDecoder: payload": (RangeDecoder, [("text", TypeError, ["bytes", "str"])]),
    "RangeEncoder: class_of": (RangeEncoder, CLASSES),
    "RangeDecoder: class_of": (lambda wrong: RangeDecoder(b"", wrong), CLASSES),
}


@pytest.mark.parametrize(
    ("where", "wrong", "error", "facts"), [(where, *case) for where, (_, cases) in CALLS.items() for case in cases]
)
def test_wrong_argument_is_refused(where, wrong, error, facts):
    with pytest.raises(error, match=says(where, *facts)):
        CALLS[where][0](wrong)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alphabet", [1, 3, 5, 6])
def test_symbols_of_classes_come_back_from_scores(alphabet, dtype):
    """Six symbols, of which those outside the alphabet share the last class: each has its share of the probability."""
    class_of, rng = np.minimum(np.arange(6), alphabet), np.random.default_rng(alphabet)
    scores, symbols = rng.normal(size=(200, alphabet + 1)).astype(dtype), rng.integers(0, 6, 200)
    weights = (np.exp(scores.astype(float) - scores.max(axis=1, keepdims=True)) * 2**22).astype(int)
    weights[:, -1] //= max(6 - alphabet, 1)
    of_symbols = np.take(weights, class_of, axis=1)
    factors = (TOTAL - 6) / (1 + of_symbols.sum(axis=1, keepdims=True))
    encoder = RangeEncoder(class_of)
    encoder.encode_scores(symbols[:90], scores[:90])
    encoder.encode_scores(symbols[90:], scores[90:])
    payload = encoder.finish()
    by_table = encoded(symbols, 1 + (of_symbols * factors).astype(np.int32))
    assert abs(len(payload) - len(by_table)) <= 1  # exp's last bit
    decoder = RangeDecoder(payload, class_of)
    found = [decoder.decode_scores(rows) for rows in np.split(scores, [1, 50])]
    np.testing.assert_array_equal(np.concatenate(found), symbols)


def test_scores_without_classes_are_coded_as_frequencies():
    scores, symbols = np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 4
    encoder = RangeEncoder()
    encoder.encode_scores(symbols, np.asfortranarray(scores))
    payload = encoder.finish()
    assert payload == encoded(symbols, frequencies(scores))
    np.testing.assert_array_equal(RangeDecoder(payload).decode_scores(scores), symbols)


REFUSED = [
    ("encode", "symbols", ([0.5, 1], TABLE), TypeError, ["integers", "float64"]),
    ("encode", "symbols", ([0], TABLE), ValueError, [(2,), (1,)]),
    ("encode", "symbols", ([0, 3], TABLE), ValueError, ["0..2", 3]),
    ("encode", "symbols", ([-1, 0], TABLE), ValueError, ["0..2", -1]),
    ("encode_scores", "scores", ([0], np.zeros((1, 2))), ValueError, ["3", (1, 2)]),
    ("encode_scores", "scores", ([0], [[0.0, 0.0, 0.0]]), TypeError, ["numpy.ndarray", "list"]),
    ("encode_scores", "scores", ([0], np.zeros((1, 3), int)), TypeError, ["float32", "int64"]),
    ("encode_scores", "scores", ([0], np.zeros(3)), ValueError, [(3,)]),
    ("encode_scores", "symbols", ([4], np.zeros((1, 3))), ValueError, ["0..3", 4]),
    ("encode_scores", "symbols", ([0, 1], np.zeros((1, 3))), ValueError, [(1,), (2,)]),
    ("encode_scores", "symbols", ([0.5], np.zeros((1, 3))), TypeError, ["integers", "float64"]),
]
KINDS = {"encode": (None, ([2, 1], TABLE)), "encode_scores": ([0, 1, 2, 2], ([3], np.zeros((1, 3))))}


@pytest.mark.parametrize(("call", "argument", "wrong", "error", "facts"), REFUSED)
def test_refused_symbols_and_scores_do_not_change_the_encoder(call, argument, wrong, error, facts):
    """Which takes no more when it has finished, and repeats its bytes."""
    class_of, right = KINDS[call]
    encoder, fresh = RangeEncoder(class_of), RangeEncoder(class_of)
    with pytest.raises(error, match=says(f"{call}: {argument}", *facts)):
        getattr(encoder, call)(*wrong)
    if argument == "scores":
        with pytest.raises(error, match=says("decode_scores: scores", *facts)):
            RangeDecoder(b"", class_of).decode_scores(wrong[1])
    for one in (encoder, fresh):
        getattr(one, call)(*right)
    assert encoder.finish() == encoder.finish() == fresh.finish()
    with pytest.raises(ValueError, match=says(f"{call}: encoder is already finished")):
        getattr(encoder, call)(*right)
