"""The comparisons can fail, and name what differs."""

import numpy as np
import pytest
from tolerances import (
    OUTPUTS,
    TABLE,
    assert_close,
    assert_gradient_close,
    assert_outputs_close,
    assert_same_bits,
    assert_same_results,
)

from rnnkit import Infer

EXPECTED = np.arange(6.0).reshape(2, 3)


def changed(value):
    array = EXPECTED.copy()
    array[1, 2] = value
    return array


@pytest.mark.parametrize("dtype", TABLE)
def test_close_values_pass(dtype):
    assert_close("y", changed(5 + 2 * TABLE[dtype].value), EXPECTED, dtype)
    assert_gradient_close("dw", changed(5 + 2 * TABLE[dtype].gradient), EXPECTED, dtype)
    assert_close("cy", None, None, dtype)
    assert_close("y", np.zeros((0, 2)), np.zeros((0, 2)), dtype)


@pytest.mark.parametrize("value", [5.1, 4.9, np.nan, np.inf, -5.0])
@pytest.mark.parametrize("dtype", TABLE)
def test_far_value_is_found(dtype, value):
    with pytest.raises(AssertionError, match=rf"\Ahy\[1, 2\] is \S*{value}\S*, expected \S*5\.0\S*, more than"):
        assert_close("hy", changed(value), EXPECTED, dtype)
    with pytest.raises(AssertionError, match=r"\Ay\[1, 2\] is"):  # barely too far
        assert_close("y", changed(5 + 6 * TABLE[dtype].value), EXPECTED, dtype)


@pytest.mark.parametrize("check", [assert_close, assert_gradient_close, lambda *a: assert_same_bits(*a[:3])])
@pytest.mark.parametrize(("actual", "expected"), [(EXPECTED[:1], EXPECTED), (EXPECTED, None), (None, EXPECTED)])
def test_shapes_and_absence_are_compared(check, actual, expected):
    with pytest.raises(AssertionError, match=r"\Ay: expected"):
        check("y", actual, expected, "float64")


def test_different_bits_and_types_are_found():
    assert_same_bits("y", EXPECTED.copy(), EXPECTED)
    for value in (np.nextafter(5, 6), -5.0, np.nan):
        with pytest.raises(AssertionError, match=r"\Ay\[1, 2\] is \S+, expected the bits of"):
            assert_same_bits("y", changed(value), EXPECTED)
    with pytest.raises(AssertionError, match=r"\Ay\[0\] is"):
        assert_same_bits("y", np.array([0.0]), np.array([-0.0]))
    with pytest.raises(AssertionError, match=r"\Ay: expected float64, got float32"):
        assert_same_bits("y", EXPECTED.astype(np.float32), EXPECTED)


@pytest.mark.parametrize(
    "cy", [(EXPECTED, changed(7.0)), (EXPECTED,), EXPECTED, None], ids=["value", "one", "array", "none"]
)
def test_each_of_several_states_is_compared(cy):
    expected = Infer(EXPECTED, EXPECTED, (EXPECTED, EXPECTED))
    assert_same_results(expected, expected, OUTPUTS)
    for check in (assert_same_results, lambda found, wanted, _: assert_outputs_close(found, wanted, "float64")):
        with pytest.raises(AssertionError, match=r"\Acy(\[1\]\[1, 2\] is|: expected a tuple of 2)"):
            check(expected._replace(cy=cy), expected, OUTPUTS)
