"""Padding and back, masks and buckets: round trips, naive twins, and everything that is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import says
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
    expected = says("lengths_of: mask", f"step {step}", f"sequence {n}", f"step {step - 1}", "mask.T")
    with pytest.raises(ValueError, match=expected):
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
    with pytest.raises(ValueError, match=says("bucket_batches: batch_size", 1, 0)):
        bucket_batches([1], 0)


ONE = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("sequences", "error", "argument", "facts"),
    [
        (ONE, TypeError, "sequences", ["list", "arrays", "numpy.ndarray"]),
        (iter([ONE]), TypeError, "sequences", ["list", "arrays", "list_iterator"]),
        ("text", TypeError, "sequences", ["list", "arrays", "str"]),
        ([], ValueError, "sequences", ["array", "none"]),
        ([[1.0]], TypeError, "sequences[0]", ["numpy.ndarray", "cupy.ndarray", "list"]),
        ([ONE, [1.0]], TypeError, "sequences[1]", ["numpy.ndarray", "cupy.ndarray", "list"]),
        ([ONE, ONE.astype("f4")], TypeError, "sequences[1]", ["float64", "sequences[0]", "float32"]),
        ([ONE, ONE[:, 1:]], ValueError, "sequences[1]", ["(seq_len, 3)", "sequences[0]", (2, 2)]),
        ([ONE[0, :0], ONE], ValueError, "sequences[1]", ["(seq_len,)", "sequences[0]", (2, 3)]),
        ([ONE, ONE[0]], ValueError, "sequences[1]", ["(seq_len, 3)", "sequences[0]", (3,)]),
        ([np.array(1.0)], ValueError, "sequences[0]", ["(seq_len, ...)", ()]),
        ([np.ma.ones(3)], TypeError, "sequences[0]", ["numpy.ma.MaskedArray", "mask", "sequences[0].filled(0)"]),
    ],
)
def test_what_pad_refuses(sequences, error, argument, facts):
    with pytest.raises(error, match=says(f"pad: {argument}", *facts)):
        pad(sequences)


@pytest.mark.parametrize(
    ("y", "lengths", "error", "argument", "facts"),
    [
        ([1.0], [1], TypeError, "y", ["numpy.ndarray", "cupy.ndarray", "list"]),
        (np.zeros(3), [1], ValueError, "y", ["(seq_len, batch_size, ...)", (3,)]),
        (ONE, [1, 1], ValueError, "lengths", ["(batch_size=3,)", (2,)]),
        (ONE, [1, 3, 1], ValueError, "lengths[1]", ["0..seq_len=2", 3]),
        (ONE, [1, -1, 1], ValueError, "lengths[1]", ["0..seq_len=2", -1]),
        (ONE, [1.0, 1.0, 1.0], TypeError, "lengths", ["integers", "float64"]),
        (ONE, None, TypeError, "lengths", ["integer array", "host", "NoneType"]),
    ],
)
def test_what_unpad_refuses(y, lengths, error, argument, facts):
    with pytest.raises(error, match=says(f"unpad: {argument}", *facts)):
        unpad(y, lengths)


@pytest.mark.parametrize(
    ("mask", "error", "argument", "facts"),
    [
        ([[True]], TypeError, "mask", ["numpy.ndarray", "cupy.ndarray", "list"]),
        (np.ones((2, 3)), TypeError, "mask", ["bool", "float64", "mask.astype(bool)"]),
        (np.ones(3, bool), ValueError, "mask", ["(seq_len, batch_size)", (3,)]),
        (np.array([[True, False], [True, True]]), ValueError, "mask", ["step 1", "sequence 1", "step 0"]),
    ],
)
def test_what_lengths_of_refuses(mask, error, argument, facts):
    with pytest.raises(error, match=says(f"lengths_of: {argument}", *facts)):
        lengths_of(mask)


@pytest.mark.parametrize(
    ("wrong", "error", "argument", "facts"),
    [
        (dict(lengths=None), TypeError, "lengths", ["integer array", "host", "NoneType"]),
        (dict(lengths=3), TypeError, "lengths", ["None", "integer array", "host", "int"]),
        (dict(lengths=[[1], [1, 2]]), TypeError, "lengths", ["integers", "array"]),
        (dict(lengths=np.ones((2, 2), int)), ValueError, "lengths", ["(batch_size=4,)", (2, 2)]),
        (dict(lengths=[1, -2]), ValueError, "lengths[1]", ["0..seq_len=", -2]),
        (dict(lengths=[1.5]), TypeError, "lengths", ["integers", "float64"]),
        (dict(batch_size=0), ValueError, "batch_size", [1, 0]),
        (dict(batch_size=2.0), TypeError, "batch_size", ["int", "float"]),
        (dict(window=0), ValueError, "window", [1, 0]),
        (dict(seed="1"), TypeError, "seed", ["None", "int", "str"]),
        (dict(seed=-1), ValueError, "seed", ["0..", -1]),
    ],
)
def test_what_bucket_batches_refuses(wrong, error, argument, facts):
    values = {"lengths": [1, 2], "batch_size": 2, **wrong}
    with pytest.raises(error, match=says(f"bucket_batches: {argument}", *facts)):
        bucket_batches(**values)
