"""Padding and back, masks and buckets: round trips, naive twins, and everything that is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import raises, says
from tolerances import assert_same_bits

from rnnkit.training import bucket_batches, lengths_of, pad, unpad

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=6)
TRAILING = st.sampled_from([(), (1,), (3,), (2, 2)])
DTYPE = st.sampled_from(["float32", "float64", "int64", "uint8", "bool"])


def sequences_of(lengths, trailing, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [(100 * rng.uniform(size=(length, *trailing))).astype(dtype) for length in lengths]


@given(LENGTHS, TRAILING, DTYPE)
def test_unpad_inverts_pad(lengths, trailing, dtype):
    sequences = sequences_of(lengths, trailing, dtype)
    x, found = pad(sequences)
    assert found.tolist() == lengths and found.dtype == np.int64
    assert x.shape == (max(lengths), len(lengths), *trailing) and x.dtype == dtype
    for n, length in enumerate(lengths):
        assert_same_bits("padding", x[length:, n], np.zeros_like(x[length:, n]))
    again = unpad(x, found)
    assert len(again) == len(sequences)
    for actual, expected in zip(again, sequences, strict=True):
        assert_same_bits("sequence", actual, expected)
        assert not np.may_share_memory(actual, x)


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=4))
def test_mask_has_lengths_or_its_first_gap_is_named(rows):
    wrong = [(n, row) for n, row in enumerate(rows) if sorted(row, reverse=True) != row]
    mask = np.array(rows).T
    if not wrong:
        found = lengths_of(mask)
        assert found.tolist() == [sum(row) for row in rows] and found.dtype == np.int64
        assert lengths_of(np.asfortranarray(mask)).tolist() == found.tolist()
        return
    n, row = wrong[0]
    step = next(step for step in range(1, 4) if row[step] and not row[step - 1])
    facts = f"step {step}", f"sequence {n}", f"step {step - 1}", "mask.T"
    with pytest.raises(ValueError, match=says("lengths_of: mask", *facts)):
        lengths_of(mask)


def test_empty_mask_has_lengths():
    assert lengths_of(np.zeros((0, 3), bool)).tolist() == [0, 0, 0]
    assert lengths_of(np.zeros((3, 0), bool)).tolist() == []


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 7), st.integers(1, 5), st.integers(0, 3))
def test_buckets_hold_every_sequence_once(lengths, batch_size, window, seed):
    batches = list(bucket_batches(lengths, batch_size, seed=seed, window=window))
    assert sorted(np.concatenate([[], *batches]).tolist()) == list(range(len(lengths)))
    sizes = sorted((len(batch) for batch in batches), reverse=True)
    whole, rest = divmod(len(lengths), batch_size)
    assert sizes == [batch_size] * whole + [rest] * (rest > 0)
    assert all(batch.dtype == np.int64 for batch in batches)


def padding(lengths, batches):
    return 1 - lengths.sum() / sum(lengths[batch].max() * len(batch) for batch in batches)


def test_wider_windows_have_less_padding():
    lengths = np.random.default_rng(0).integers(1, 101, 10_000)
    shares = [padding(lengths, bucket_batches(lengths, 32, seed=1, window=window)) for window in (1, 10, 50, 1000)]
    assert shares[0] > 0.4 and shares[1] < 0.1 and shares[2] < 0.03 and shares[3] < 0.005
    by_length = padding(lengths, np.array_split(np.argsort(lengths), 10_000 // 32))
    assert shares[3] < by_length + 0.002  # nothing has less than all of them sorted


def test_seed_decides_the_batches():
    lengths = np.random.default_rng(0).integers(1, 101, 500)

    def batches(**options):
        return [batch.tolist() for batch in bucket_batches(lengths, 8, window=4, **options)]

    assert batches(seed=1) == batches(seed=1)
    assert batches(seed=1) != batches(seed=2)
    assert batches() != batches()
    assert {frozenset(batch) for batch in batches(seed=1)} != {frozenset(batch) for batch in batches(seed=2)}
    longest = [max(lengths[batch]) for batch in batches(seed=1)]
    assert longest != sorted(longest) and longest[:4] != sorted(longest[:4])


ONE, MASKED, GAP = np.zeros((2, 3)), np.ma.ones(3), np.array([[1, 0], [1, 1]], bool)
REFUSED = [
    (lambda: pad(ONE), TypeError, "pad: sequences | list | arrays | numpy.ndarray"),
    (lambda: pad(iter([ONE])), TypeError, "pad: sequences | list | arrays | list_iterator"),
    (lambda: pad("text"), TypeError, "pad: sequences | list | arrays | str"),
    (lambda: pad([]), ValueError, "pad: sequences | array | none"),
    (lambda: pad([[1.0]]), TypeError, "pad: sequences[0] | numpy.ndarray | cupy.ndarray | list"),
    (lambda: pad([ONE, ONE.astype("f4")]), TypeError, "pad: sequences[1] | float64 | sequences[0] | float32"),
    (lambda: pad([ONE, ONE[:, 1:]]), ValueError, "pad: sequences[1] | (seq_len, 3) | sequences[0] | (2, 2)"),
    (lambda: pad([ONE[0, :0], ONE]), ValueError, "pad: sequences[1] | (seq_len,) | sequences[0] | (2, 3)"),
    (lambda: pad([np.array(1.0)]), ValueError, "pad: sequences[0] | (seq_len, ...) | ()"),
    (lambda: pad([MASKED]), TypeError, "pad: sequences[0] | numpy.ma.MaskedArray | mask | sequences[0].filled(0)"),
    (lambda: unpad([1.0], [1]), TypeError, "unpad: y | numpy.ndarray | cupy.ndarray | list"),
    (lambda: unpad(np.zeros(3), [1]), ValueError, "unpad: y | (seq_len, batch_size, ...) | (3,)"),
    (lambda: unpad(ONE, [1, 1]), ValueError, "unpad: lengths | (batch_size=3,) | (2,)"),
    (lambda: unpad(ONE, [1, 3, 1]), ValueError, "unpad: lengths[1] | 0..seq_len=2 | 3"),
    (lambda: unpad(ONE, None), TypeError, "unpad: lengths | integer array | host | NoneType"),
    (lambda: lengths_of([[True]]), TypeError, "lengths_of: mask | numpy.ndarray | cupy.ndarray | list"),
    (lambda: lengths_of(np.ones((2, 3))), TypeError, "lengths_of: mask | bool | float64 | mask.astype(bool)"),
    (lambda: lengths_of(np.ones(3, bool)), ValueError, "lengths_of: mask | (seq_len, batch_size) | (3,)"),
    (lambda: lengths_of(GAP), ValueError, "lengths_of: mask | step 1 | sequence 1 | step 0"),
    (lambda: bucket_batches(None, 2), TypeError, "bucket_batches: lengths | integer array | host | NoneType"),
    (lambda: bucket_batches(3, 2), TypeError, "bucket_batches: lengths | None | integer array | host | int"),
    (lambda: bucket_batches([[1], [1, 2]], 2), TypeError, "bucket_batches: lengths | integers | array"),
    (lambda: bucket_batches(ONE.astype(int), 2), ValueError, "bucket_batches: lengths | (batch_size=6,) | (2, 3)"),
    (lambda: bucket_batches([1, -2], 2), ValueError, "bucket_batches: lengths[1] | 0..seq_len= | -2"),
    (lambda: bucket_batches([1, 2], 0), ValueError, "bucket_batches: batch_size | 1 | 0"),
    (lambda: bucket_batches([1, 2], 2.0), TypeError, "bucket_batches: batch_size | int | float"),
    (lambda: bucket_batches([1, 2], 2, window=0), ValueError, "bucket_batches: window | 1 | 0"),
    (lambda: bucket_batches([1, 2], 2, seed=-1), ValueError, "bucket_batches: seed | 0.. | -1"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_wrong_argument_is_refused_at_the_call(call, error, message):
    with raises(error, message):
        call()
