"""Arguments that are bound once: as they were given, in every call, and for as long as somebody may call."""

import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

from rnnkit_kernels.machine.bound import values_of
from rnnkit_kernels.machine.jit import kernel
from rnnkit_kernels.machine.thread_pool import bound  # without the check of `conftest`


class _Pair(NamedTuple):
    first: Any
    second: Any


@kernel
def _read(bound, target, thread_id, size, sync):
    numbers, flags, nothing, pair, empty, table, small = values_of(bound)
    vector, inner = pair.first, pair.second
    read = numbers[0] + numbers[1] + numbers[2] + vector[1] + vector.size + inner[0] + table[1, 2] + small[0]
    target[0] = read + (0.25 if flags[0] and not flags[1] and nothing is None and len(empty) == 0 else 0.0)
    for i in range(table.shape[0]):
        target[1 + i] = table[i, 0]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_bound_arguments_are_read_as_they_were_given(kind):
    """They are kept alive, and what is in the arrays may change."""
    vector, table = np.array([1, 20, 300], kind), np.arange(6, dtype=np.int64).reshape(2, 3) * 1000
    numbers, flags, small = (7, -2.5, kind(0.125)), (True, np.bool_(False)), np.array([200], np.uint8)
    target, before = np.zeros(3), sys.getrefcount(table)
    call = bound(_read, 1, target, numbers, flags, None, _Pair(vector, (10_000_000,)), (), table[:], small)
    for value in (20, 40):
        vector[1] = value
        call(target)
        assert target.tolist() == [7 - 2.5 + 0.125 + value + 3 + 10_000_000 + 5000 + 200 + 0.25, 0, 3000]
    assert sys.getrefcount(table) == before + 1
    del call
    assert sys.getrefcount(table) == before
