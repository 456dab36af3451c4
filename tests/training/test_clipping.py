"""The norm of a gradient: against NumPy, at the ends of the formats, and everything that is refused."""

import numpy as np
import pytest
from messages import raises
from tolerances import assert_close, assert_same_bits

from rnnkit.training import clip_gradient_norm

every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def gradient_of(size, dtype):
    return np.random.default_rng(size).normal(size=size).astype(dtype)


def assert_norm(norm, expected, dtype):
    assert type(norm) is float
    assert_close("norm", norm / expected, 1.0, dtype)


@every_dtype
@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 1000, 100_003])
def test_norm_is_returned_and_limited(size, dtype):
    gradient = gradient_of(size, dtype)
    before = gradient.copy()
    expected = np.linalg.norm(before.astype(np.float64))
    assert_norm(clip_gradient_norm(gradient, 0.1 * expected), expected, dtype)
    assert_close("gradient", gradient, 0.1 * before.astype(np.float64), dtype)


@pytest.mark.parametrize("limit", [5.0, 5.1, np.inf])
def test_gradient_within_the_limit_is_unchanged(limit):
    gradient = np.array([3.0, -4.0])
    assert clip_gradient_norm(gradient, limit) == 5.0 and gradient.tolist() == [3.0, -4.0]


def test_several_arrays_have_one_norm():
    gradient = gradient_of(100, "float64")
    parts = gradient[:30].copy(), gradient[30:30], gradient[30:].reshape(7, 10).copy()
    expected = gradient.copy()
    norm = clip_gradient_norm(expected, 1.0)
    assert_norm(clip_gradient_norm(parts, 1.0), norm, "float64")
    for part, wanted in zip(parts, np.split(expected, [30, 30]), strict=True):
        assert_close("part", part.reshape(-1), wanted, "float64")


@every_dtype
@pytest.mark.parametrize("power", [-0.99, -0.9, -0.51, -0.5, 0.5, 0.9, 0.99])
def test_squares_neither_overflow_nor_vanish(power, dtype):
    scale = float(np.finfo(dtype).max) ** power
    gradient = (scale * gradient_of(1000, "float64") / 5).astype(dtype)
    before = gradient.copy()
    of_one = before.astype(np.float64) / scale
    expected = float(np.linalg.norm(of_one))
    limit = 1e-4 if power > 0 else 1.0
    assert_norm(clip_gradient_norm(gradient, limit) / scale, expected, dtype)
    if power > 0:
        assert_close("gradient", gradient.astype(np.float64) / limit, of_one / expected, dtype)
    else:
        assert_same_bits("gradient", gradient, before)


@every_dtype
@pytest.mark.parametrize(("bad", "limit"), [(np.nan, 1.0), (np.inf, 1.0), (-np.inf, np.inf)])
def test_gradient_with_nan_or_infinity_is_unchanged(bad, limit, dtype):
    gradient = gradient_of(100, dtype)
    gradient[7] = bad
    before = gradient.copy()
    norm = clip_gradient_norm(gradient, limit)
    assert not np.isfinite(norm) and np.isnan(norm) == np.isnan(bad)
    assert_same_bits("gradient", gradient, before)


def test_norm_of_zeros_is_zero():
    assert clip_gradient_norm(np.zeros(0), 1.0) == 0.0
    assert clip_gradient_norm(np.zeros(5, np.float32), 1.0) == 0.0


WIDE, MASKED, READ_ONLY, SINGLE = np.ones(5), np.ma.ones(3), np.ones(3), np.ones(3, "f4")
READ_ONLY.flags.writeable = False
REFUSED = [
    ([1.0, 2.0], 1, TypeError, "gradient[0] | numpy.ndarray | cupy.ndarray | float"),
    ("text", 1, TypeError, "gradient | numpy.ndarray | cupy.ndarray | sequence | str"),
    ([], 1, ValueError, "gradient | array | none"),
    (np.ones(3, int), 1, TypeError, 'gradient | float32 | float64 | int64 | gradient.astype("float32")'),
    ([WIDE, SINGLE], 1, TypeError, "gradient[1] | float64 | gradient[0] | float32"),
    (np.ones((3, 2))[:, 0], 1, ValueError, "gradient | C-contiguous | (16,) | numpy.ascontiguousarray(gradient)"),
    ([WIDE[:3], WIDE[2:]], 1, ValueError, "gradient[1] | memory | gradient[0]"),
    (READ_ONLY, 1, ValueError, "gradient | writeable"),
    (MASKED, 1, TypeError, "gradient | numpy.ndarray | numpy.ma.MaskedArray | mask"),
    (WIDE, 0, ValueError, "limit | 0"),
    (WIDE, np.nan, ValueError, "limit | 0 | nan"),
    (WIDE, 10**400, ValueError, "limit | float64"),
    (WIDE, "1", TypeError, "limit | number | str"),
    (WIDE, True, TypeError, "limit | number | bool"),
]


@pytest.mark.parametrize(("gradient", "limit", "error", "message"), REFUSED)
def test_wrong_argument_is_refused(gradient, limit, error, message):
    with raises(error, f"clip_gradient_norm: {message}"):
        clip_gradient_norm(gradient, limit)
