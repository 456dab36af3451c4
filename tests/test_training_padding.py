"""Padding and back, masks and buckets: round trips, naive twins, and everything that is refused."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_same_bits

from rnnkit.training import bucket_batches, lengths_of, pad, unpad

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=6)
TRAILING = st.sampled_from([(), (1,), (3,), (2, 2)])
DTYPE = st.sampled_from(["float32", "float64", "int64", "uint8", "bool"])


def sequences_of(lengths, trailing, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return [(100 * rng.uniform(size=(length, *trailing))).astype(dtype) for length in lengths]


@given(LENGTHS, TRAILING, DTYPE)
def test_padding_and_back(lengths, trailing, dtype):
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


@given(LENGTHS, st.integers(0, 3))
def test_lengths_of_a_mask_and_back(lengths, more):
    mask = np.arange(max(lengths) + more)[:, None] < lengths
    found = lengths_of(mask)
    assert found.tolist() == lengths and found.dtype == np.int64
    assert lengths_of(np.asfortranarray(mask)).tolist() == lengths


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=4))
def test_every_mask_has_lengths_or_is_refused(rows):
    """Against the definition, row by row."""
    wrong = [(n, row) for n, row in enumerate(rows) if sorted(row, reverse=True) != row]
    mask = np.array(rows).T
    if not wrong:
        assert lengths_of(mask).tolist() == [sum(row) for row in rows]
        return
    n, row = wrong[0]
    step = next(step for step in range(1, 4) if row[step] and not row[step - 1])
    got = f"step {step} of sequence {n} valid after step {step - 1} that is not; move the padding, or give mask.T if"
    with pytest.raises(ValueError, match=f"lengths_of: mask must have all padding at the end, got {re.escape(got)}"):
        lengths_of(mask)


def test_masks_of_no_size():
    assert lengths_of(np.zeros((0, 3), bool)).tolist() == [0, 0, 0]
    assert lengths_of(np.zeros((3, 0), bool)).tolist() == []


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 7), st.integers(1, 5), st.integers(0, 3))
def test_every_sequence_comes_once(lengths, batch_size, window, seed):
    batches = list(bucket_batches(lengths, batch_size, seed=seed, window=window))
    assert sorted(np.concatenate([[], *batches]).tolist()) == list(range(len(lengths)))
    sizes = sorted((len(batch) for batch in batches), reverse=True)
    whole, rest = divmod(len(lengths), batch_size)
    assert sizes == [batch_size] * whole + [rest] * (rest > 0)
    assert all(batch.dtype == np.int64 for batch in batches)


def padding(lengths, batches):
    return 1 - lengths.sum() / sum(lengths[batch].max() * len(batch) for batch in batches)


def test_buckets_have_little_padding_and_windows_are_random():
    lengths = np.random.default_rng(0).integers(1, 101, 10_000)
    shares = [padding(lengths, bucket_batches(lengths, 32, seed=1, window=window)) for window in (1, 10, 50, 1000)]
    assert shares[0] > 0.4 and shares[1] < 0.1 and shares[2] < 0.03 and shares[3] < 0.005
    by_length = padding(lengths, np.array_split(np.argsort(lengths), 10_000 // 32))
    assert shares[3] < by_length + 0.002  # nothing has less than all of them sorted


def test_the_seed_decides_the_batches():
    lengths = np.random.default_rng(0).integers(1, 101, 500)

    def batches(**options):
        return [batch.tolist() for batch in bucket_batches(lengths, 8, window=4, **options)]

    assert batches(seed=1) == batches(seed=1)
    assert batches(seed=1) != batches(seed=2)
    assert batches() != batches()
    assert {frozenset(batch) for batch in batches(seed=1)} != {frozenset(batch) for batch in batches(seed=2)}
    longest = [max(lengths[batch]) for batch in batches(seed=1)]
    assert longest != sorted(longest) and longest[:4] != sorted(longest[:4])


def test_what_is_wrong_is_told_at_the_call():
    with pytest.raises(ValueError, match="bucket_batches: batch_size must be at least 1, got 0"):
        bucket_batches([1], 0)


ONE = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("sequences", "error", "message"),
    [
        (ONE, TypeError, "sequences must be a list of arrays, got numpy.ndarray"),
        (iter([ONE]), TypeError, "sequences must be a list of arrays, got list_iterator"),
        ("text", TypeError, "sequences must be a list of arrays, got str"),
        ([], ValueError, "sequences must hold at least one array, got none"),
        ([[1.0]], TypeError, r"sequences\[0\] must be a numpy.ndarray or a cupy.ndarray, got list"),
        ([ONE, [1.0]], TypeError, r"sequences\[1\] must be a numpy.ndarray or a cupy.ndarray, got list"),
        ([ONE, ONE.astype("f4")], TypeError, r"sequences\[1\] must be float64 as sequences\[0\] is, got float32; conv"),
        ([ONE, ONE[:, 1:]], ValueError, r"sequences\[1\] must have shape \(seq_len, 3\) as sequences\[0\] .* \(2, 2\)"),
        ([ONE[0, :0], ONE], ValueError, r"sequences\[1\] must have shape \(seq_len,\) as sequences\[0\] does"),
        ([ONE, ONE[0]], ValueError, r"sequences\[1\] must have shape \(seq_len, 3\) as sequences\[0\] does"),
        ([np.array(1.0)], ValueError, r"sequences\[0\] must have shape \(seq_len, ...\), got \(\)"),
        ([np.ma.ones(3)], TypeError, r"sequences\[0\] must be .*; a mask is not looked at: give "),
    ],
)
def test_what_pad_refuses(sequences, error, message):
    with pytest.raises(error, match=rf"\Apad: {message}"):
        pad(sequences)


@pytest.mark.parametrize(
    ("y", "lengths", "error", "message"),
    [
        ([1.0], [1], TypeError, "y must be a numpy.ndarray or a cupy.ndarray, got list"),
        (np.zeros(3), [1], ValueError, r"y must have shape \(seq_len, batch_size, ...\), got \(3,\)"),
        (ONE, [1, 1], ValueError, r"lengths must have shape \(batch_size=3,\), got \(2,\)"),
        (ONE, [1, 3, 1], ValueError, r"lengths\[1\] must be in 0..seq_len=2, got 3"),
        (ONE, [1, -1, 1], ValueError, r"lengths\[1\] must be in 0..seq_len=2, got -1"),
        (ONE, [1.0, 1.0, 1.0], TypeError, "lengths must hold integers, got dtype float64"),
        (ONE, None, TypeError, "lengths must be an integer array on the host, got NoneType"),
    ],
)
def test_what_unpad_refuses(y, lengths, error, message):
    with pytest.raises(error, match=rf"\Aunpad: {message}"):
        unpad(y, lengths)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        ([[True]], TypeError, "mask must be a numpy.ndarray or a cupy.ndarray, got list"),
        (np.ones((2, 3)), TypeError, r"mask must be bool, got float64; convert it with mask.astype\(bool\)"),
        (np.ones(3, bool), ValueError, r"mask must have shape \(seq_len, batch_size\), got \(3,\)"),
        (np.array([[True, False], [True, True]]), ValueError, "mask must have all padding at the end, got step"),
    ],
)
def test_what_lengths_of_refuses(mask, error, message):
    with pytest.raises(error, match=rf"\Alengths_of: {message}"):
        lengths_of(mask)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (dict(lengths=None), TypeError, "lengths must be an integer array on the host, got NoneType"),
        (dict(lengths=3), TypeError, "lengths must be None or an integer array on the host, got int"),
        (dict(lengths=[[1], [1, 2]]), TypeError, "lengths must hold integers, got what is no array"),
        (dict(lengths=np.ones((2, 2), int)), ValueError, r"lengths must have shape \(batch_size=4,\), got \(2, 2\)"),
        (dict(lengths=[1, -2]), ValueError, r"lengths\[1\] must be in 0..seq_len=\d+, got -2"),
        (dict(lengths=[1.5]), TypeError, "lengths must hold integers, got dtype float64"),
        (dict(batch_size=0), ValueError, "batch_size must be at least 1, got 0"),
        (dict(batch_size=2.0), TypeError, "batch_size must be an int, got float"),
        (dict(window=0), ValueError, "window must be at least 1, got 0"),
        (dict(seed="1"), TypeError, "seed must be None or an int, got str"),
        (dict(seed=-1), ValueError, "seed must be in 0.."),
    ],
)
def test_what_bucket_batches_refuses(wrong, error, message):
    values = {"lengths": [1, 2], "batch_size": 2, **wrong}
    with pytest.raises(error, match=rf"\Abucket_batches: {message}"):
        bucket_batches(**values)
