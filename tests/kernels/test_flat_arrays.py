"""What a kernel makes of the arrays that it is given: where the first number is, and how many there are."""

from typing import NamedTuple

import numba
import numpy as np
import pytest
from numba import types

from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.arrays import FlatArray, flat, part, signature_of
from rnnkit_kernels.machine.jit import kernel


class Pair(NamedTuple):
    source: np.ndarray
    target: np.ndarray


@kernel
def _copy_reversed(pair, sizes, thread_id, size, sync):
    for i in range(pair.source.size):
        pair.target[pair.source.size - 1 - i] = pair.source[i]
    sizes[0], sizes[1] = pair.source.size, pair.target.size


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_every_element_of_a_view_is_read_and_written(dtype, count):
    source = np.arange(-2, 9).astype(dtype)[2 : 2 + count]
    target, sizes = np.full(count + 1, 1, dtype), np.zeros(2, np.int64)
    thread_pool.run(_copy_reversed, 1, Pair(source, target), sizes)
    np.testing.assert_array_equal(target, [*source[::-1], np.ones((), dtype)])
    assert list(sizes) == [count, count + 1]


@kernel
def _sum_part(matrix, start, stop, total, thread_id, size, sync):
    values = part(flat(matrix), start, stop)
    for i in range(values.size):
        total[0] += values[i]


def test_part_of_an_array_of_two_dimensions():
    total, matrix = np.zeros(1), np.arange(12.0).reshape(3, 4)
    thread_pool.run(_sum_part, 1, matrix, 3, 9, total)
    assert total[0] == matrix.reshape(-1)[3:9].sum()


def test_only_arrays_of_one_dimension_are_flat_types():
    numbers, matrix = np.zeros(3, np.float32), np.zeros((2, 3))
    found = signature_of((Pair(numbers, (numbers, 1)), matrix, 2.0, (), Pair(1, 2)))
    reals = FlatArray(types.float32)
    assert found[0] == types.NamedTuple([reals, types.Tuple([reals, types.int64])], Pair)
    assert found[1:] == tuple(map(numba.typeof, (matrix, 2.0, (), Pair(1, 2))))
