"""The kernels of a training step: in vector registers, with the same bits in every part of a loop."""

import numpy as np
import pytest
from machine_code import DTYPES, assert_vectorized, compiled
from tolerances import assert_close, assert_same_bits

from rnnkit_kernels import training

KERNELS = {
    "adam": (training.adam, 4, (0.9, 0.99, 0.01, 1e-8, 0.999, (0.3, 0.4, 0.2)), {"multiply": 7, "divide": 1}),
    "momentum": (training.momentum_descent, 3, (0.9, False, 0.01, 0.999), {"multiply": 3}),
    "nesterov": (training.momentum_descent, 3, (0.9, True, 0.01, 0.999), {"multiply": 3}),
    "descent": (training.descent, 2, (0.01, 0.999), {"multiply": 2}),
}
every_kernel = pytest.mark.parametrize("name", KERNELS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def buffers(count, size, dtype):
    return [array.astype(dtype) for array in np.random.default_rng(0).uniform(0.1, 1, (count, size))]


@every_dtype
@every_kernel
def test_steps_are_vectorized(name, dtype):
    kernel, count, numbers, wanted = KERNELS[name]
    assert_vectorized(compiled(kernel.py_func, *buffers(count, 8, dtype), *numbers), wanted)


@every_dtype
@pytest.mark.parametrize("squares", [False, True])
def test_sums_are_vectorized(squares, dtype):
    assert_vectorized(compiled(training.sum_of.py_func, *buffers(1, 8, dtype), np.zeros(64), squares), {"multiply": 1})


@every_dtype
@every_kernel
def test_steps_are_those_of_python_and_of_single_numbers(name, dtype):
    kernel, count, numbers, _ = KERNELS[name]
    whole, single, written = (buffers(count, 131, dtype) for _ in range(3))
    kernel(*whole, *numbers)
    kernel.py_func(*written, *numbers)
    for i in range(131):
        kernel(*(array[i : i + 1] for array in single), *numbers)
    for actual, alone, expected in zip(whole, single, written, strict=True):
        assert_same_bits("buffer", alone, actual)
        assert_close("buffer", actual, expected, dtype)


@every_dtype
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 200])
def test_sums_are_taken_in_lanes(size, dtype):
    (values,) = buffers(1, size, dtype)
    lanes, squares = np.zeros(64), np.zeros(64)
    for i, value in enumerate(values.tolist()):
        lanes[i % 64] += value
        squares[i % 64] += value**2
    assert training.sum_of(values, np.full(64, np.nan), False) == sum_in_order(lanes)
    assert training.sum_of(values, np.full(64, np.nan), True) == sum_in_order(squares)


def sum_in_order(values):
    total = 0.0  # Python's sum compensates from 3.12 on
    for value in values.tolist():
        total += value
    return total
