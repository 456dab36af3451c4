"""The exponential that cells are written in: its last place, its ends, and that it is vectorised."""

import numba
import numpy as np
import pytest
from machine_code import assert_vectorized

from rnnkit_kernels.cells.functions import exp
from rnnkit_kernels.machine import activations as activations  # what it compiles to
from rnnkit_kernels.machine import jit


def _all(x, y):
    for i in range(x.size):
        y[i] = exp(x[i])


compiled = numba.njit(**jit.OPTIONS | {"no_cpython_wrapper": False})(_all)


def found(values, dtype):
    y = np.empty(len(values), dtype)
    compiled(np.array(values, dtype), y)
    return y


@pytest.mark.parametrize(("dtype", "most"), [("float32", 69.3), ("float64", 665.4)])
def test_exp_is_within_one_unit_in_the_last_place(dtype, most):
    rng, largest = np.random.default_rng(0), np.log(np.finfo(dtype).max) - 1e-3
    x = np.concatenate([rng.uniform(-most, largest, 20000), rng.normal(size=20000), [0, 1, -1]]).astype(dtype)
    exact = np.exp(x.astype(np.longdouble))
    units = np.abs(found(x, dtype) - exact) / np.spacing(np.exp(x))
    assert units.max() < 1
    assert found([0.0, -0.0], dtype).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exp_of_infinity_large_numbers_and_nan(dtype):
    below = -70 if dtype == "float32" else -666
    assert found([np.inf, 1e4, -np.inf, -1e4, below], dtype).tolist() == [np.inf, np.inf, 0, 0, 0]
    assert np.isnan(found([np.nan], dtype)[0])
    assert [exp(x) for x in (np.inf, 1e4, -np.inf, -1e4, 0)] == [np.inf, np.inf, 0, 0, 1] and np.isnan(exp(np.nan))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exp_is_vectorized(dtype):
    x = np.ones(8, dtype)
    compiled(x, x)
    assert_vectorized(compiled.inspect_asm((numba.typeof(x),) * 2), {"fuse": 4})
