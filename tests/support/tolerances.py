"""How close is close: the only tolerances of the test suite, with their reasons. No test has its own."""

from typing import NamedTuple

import numpy as np


class Tolerance(NamedTuple):
    """An array may differ from its expectation by `bound` times the larger of 1 and its largest expected magnitude.

    Relative to the whole array and not to each element, because a sum's rounding error scales with its terms and
    not with its result.
    """

    value: float
    gradient: float


# The test networks sum at most 65 products a gate (512 in the golden samples, which have their own published bound),
# feed them through an activation of a few units in the last place, and do so for at most 10 steps and 3 layers.
# float32 (eps 1.2e-7): 65 eps for the longest sum in the worst case. A gradient goes through every step and layer
# twice, adds up over time and batch, and loses up to a digit more.
# float64 (eps 2.2e-16): the same counts give 1e-14 and 1e-13; a factor of ten is left for the reference, which rounds
# too.
TABLE = {
    "float32": Tolerance(value=1e-5, gradient=5e-5),
    "float64": Tolerance(value=1e-13, gradient=1e-12),
}

# cuDNN sums in an order of its own, so both sides round; the bound of float64 stays that of a single rounding side. In
# float32 cuDNN's kernels for small layers were seen to deviate by 5e-6 in the Euclidean norm on an H200, as in PyTorch;
# the largest deviation of an element is a few times that. TensorFloat-32 and half precision round every factor: 2**-11
# (TF32, float16) or 2**-8 (bfloat16), which a few dozen products and a few steps bring to ten times that.
ON_GPU = {
    "float32": Tolerance(value=3e-5, gradient=5e-5),
    "float64": Tolerance(value=1e-13, gradient=1e-12),
    "tf32": Tolerance(value=5e-3, gradient=1e-2),
    "float16": Tolerance(value=5e-3, gradient=1e-2),
    "bfloat16": Tolerance(value=4e-2, gradient=8e-2),
}

# Central differences in float64 with eps 6e-6 (the cube root of the machine epsilon): truncation eps**2 and rounding
# 1e-16 / eps both stay near 4e-11 for a term of size 1; a thousand of them are summed.
FINITE_DIFFERENCE = 1e-7

# The published cuDNN sample sums hold for this relative deviation, by the sample's own readme.
GOLDEN = 1e-3


OUTPUTS = ("y", "hy", "cy")
GRADIENTS = ("dx", "dhx", "dcx", "dw")


def assert_within(name, actual, expected, bound):
    """Raise unless `actual` has the shape of `expected` and lies within `bound`; name the worst element."""
    if expected is None:
        assert actual is None, f"{name}: expected None, got {type(actual).__name__}"
        return
    assert actual is not None, f"{name}: expected an array, got None"
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"{name}: expected shape {expected.shape}, got {actual.shape}"
    if actual.size == 0:
        return
    distance = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    limit = bound * max(1.0, np.abs(expected).max())
    distance = np.where(np.isnan(distance), np.inf, distance)  # NaN is close to nothing
    worst = np.unravel_index(distance.argmax(), distance.shape)
    index = ", ".join(str(i) for i in worst)
    message = f"{name}[{index}] is {actual[worst]!r}, expected {expected[worst]!r}, more than {limit:.1e} away"
    assert distance[worst] <= limit, message


def assert_close(name, actual, expected, dtype):
    """Raise unless the values agree as results of `dtype` arithmetic."""
    assert_within(name, actual, expected, TABLE[dtype].value)


def assert_gradient_close(name, actual, expected, dtype):
    """Raise unless the gradients agree as results of `dtype` arithmetic."""
    assert_within(name, actual, expected, TABLE[dtype].gradient)


def assert_close_on_gpu(name, actual, expected, kind):
    """Raise unless a GPU's values agree with the host's; `kind` is a dtype or "tf32"."""
    assert_within(name, actual, expected, ON_GPU[kind].value)


def assert_gradient_close_on_gpu(name, actual, expected, kind):
    """Raise unless a GPU's gradients agree with the host's."""
    assert_within(name, actual, expected, ON_GPU[kind].gradient)


def pairs_of(actual, expected, names):
    """The arrays of the named fields of two results, with their names."""
    for name in names:
        found, wanted = getattr(actual, name), getattr(expected, name)
        if not isinstance(wanted, tuple):
            yield name, found, wanted
            continue
        assert isinstance(found, tuple) and len(found) == len(wanted), f"{name}: expected a tuple of {len(wanted)}"
        yield from ((f"{name}[{number}]", *pair) for number, pair in enumerate(zip(found, wanted, strict=True)))


def assert_outputs_close(actual, expected, dtype):
    """assert_close for y, hy and cy of two results."""
    for pair in pairs_of(actual, expected, OUTPUTS):
        assert_close(*pair, dtype)


def assert_gradients_close(actual, expected, dtype):
    """assert_gradient_close for dx, dhx, dcx and dw of two results."""
    for pair in pairs_of(actual, expected, GRADIENTS):
        assert_gradient_close(*pair, dtype)


def assert_same_bits(name, actual, expected):
    """Raise unless both arrays hold the same bytes; name the first element that differs."""
    if expected is None:
        assert actual is None, f"{name}: expected None, got {type(actual).__name__}"
        return
    assert actual is not None, f"{name}: expected an array, got None"
    assert actual.shape == expected.shape, f"{name}: expected shape {expected.shape}, got {actual.shape}"
    assert actual.dtype == expected.dtype, f"{name}: expected {expected.dtype}, got {actual.dtype}"
    bits = f"u{actual.dtype.itemsize}"
    different = np.ascontiguousarray(actual).view(bits) != np.ascontiguousarray(expected).view(bits)
    if different.any():
        first = tuple(int(i) for i in np.argwhere(different)[0])
        raise AssertionError(f"{name}{list(first)} is {actual[first]!r}, expected the bits of {expected[first]!r}")


def assert_same_results(actual, expected, names):
    """assert_same_bits for the named fields of two results."""
    for pair in pairs_of(actual, expected, names):
        assert_same_bits(*pair)
