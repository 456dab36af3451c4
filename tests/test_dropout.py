"""Which seed drops what: the masks against Philox written out, without NumPy's generators."""

import numpy as np
import pytest
from problems import Problem, dropout_masks

WORD = 2**64 - 1
MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B


def philox(counter, key):
    """Four words of Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
        c = [second >> 64 ^ c[1] ^ k[0], second & WORD, first >> 64 ^ c[3] ^ k[1], first & WORD]
        k = [(own + step) & WORD for own, step in zip(k, WEYL, strict=True)]
    return c


def draws(seed, layer, count):
    """The numbers in [0, 1) that decide about the elements of a layer's input, in their order in memory.

    The seed is the key, the layer the highest word of the counter, whose lowest counts up from 1. Each half of a word,
    the lower first, gives a number of 24 bits.
    """
    words = [word for block in range(1, count // 8 + 2) for word in philox((block, 0, 0, layer), (seed, 0))]
    halves = [half for word in words for half in (word & 0xFFFFFFFF, word >> 32)]
    return np.array([half >> 8 for half in halves[:count]]) / 2**24


# From kat_vectors of the authors' library, Random123.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
        ((WORD,) * 4, (WORD,) * 2, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
    ],
)
def test_this_is_philox(counter, key, expected):
    assert [f"{word:016x}" for word in philox(counter, key)] == expected.split()


# A row of 140 numbers is wider than any register, one of 5 is narrower, and neither is a whole number of registers.
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("hidden_size", "bidirectional"), [(70, True), (5, False)])
@pytest.mark.parametrize(("seed", "rate"), [(0, 0.5), (7, 0.1), (2**40 + 3, 0.5), (2**64 - 1, 0.9)])
def test_the_seed_decides_every_element(seed, rate, hidden_size, bidirectional, dtype):
    sizes = dict(hidden_size=hidden_size, bidirectional=bidirectional, num_layers=4, seq_len=3, batch_size=2)
    problem = Problem(mode="lstm", **sizes, dropout=rate, dtype=dtype)
    for layer, mask in enumerate(dropout_masks(problem, seed), 1):
        kept = draws(seed, layer, mask.size).reshape(mask.shape) >= rate
        np.testing.assert_array_equal(mask > 0, kept, f"layer {layer}")
