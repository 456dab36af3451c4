"""NaN and inf go where IEEE arithmetic takes them: never lost, never into another sequence."""

import numpy as np
import pytest
from problems import CASES, CELLS, Problem, step_loop
from tolerances import OUTPUTS, assert_close, assert_same_bits

pytestmark = pytest.mark.parametrize(("cell", "dtype"), CASES)

ROW, STEP = 2, 3
OTHERS = [0, 1, 3]


def make(cell, dtype, **options):
    return Problem(**CELLS[cell], dtype=dtype, hidden_size=9, seq_len=6, batch_size=4, num_layers=2, **options)


def assert_same_where_finite(name, actual, expected, dtype):
    """Both are NaN, +inf and -inf at the same places and close everywhere else."""
    if expected is None:
        return
    for kind in (np.isnan, np.isposinf, np.isneginf):
        assert_same_bits(f"{kind.__name__}({name})", kind(actual).view(np.uint8), kind(expected).view(np.uint8))
    finite = np.isfinite(expected)
    assert_close(name, actual[finite], expected[finite], dtype)


def assert_like_the_reference(problem, where):
    with np.errstate(invalid="ignore", over="ignore"):
        expected = problem.reference()
    for found in (problem.forward(), problem.infer()):
        for name in OUTPUTS:
            assert_same_where_finite(f"{name} {where}", getattr(found, name), getattr(expected, name), problem.dtype)


def present(problem, *names):
    """Those arrays that the problem has: without a cell there is neither cx nor dcy."""
    return [name for name in names if getattr(problem, name) is not None]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_nan_reaches_its_row_alone(cell, dtype, bidirectional):
    clean = make(cell, dtype, bidirectional=bidirectional)
    plain = clean.forward()
    right = clean.backward(plain.workspace)
    for name in present(clean, "x", "dy", "dhy", "dcy"):
        spoiled = clean.twin()
        getattr(spoiled, name)[(STEP, ROW, 1) if name == "x" else (-1, ROW)] = np.nan
        outputs = spoiled.forward()
        back = spoiled.backward(outputs.workspace)
        if cell != "relu" or name != "x":  # ReLU's derivative is a constant, whatever the activation
            assert np.isnan(back.dx[:, ROW]).any() and np.isnan(back.dhx[:, ROW]).any()
        assert np.isnan(back.dw).any()
        assert_same_bits("dx", back.dx[:, OTHERS], right.dx[:, OTHERS])
        assert_same_bits("dhx", back.dhx[:, OTHERS], right.dhx[:, OTHERS])
        if name == "x":
            for found in (outputs, spoiled.infer(), *([] if bidirectional else [step_loop(spoiled)])):
                assert np.isnan(found.y[0 if bidirectional else STEP :, ROW]).all() and np.isnan(found.hy[:, ROW]).all()
                assert_same_bits("y", found.y[:, OTHERS], plain.y[:, OTHERS])
                assert_same_bits("hy", found.hy[:, OTHERS], plain.hy[:, OTHERS])
                if not bidirectional:
                    assert_same_bits("y", found.y[:STEP, ROW], plain.y[:STEP, ROW])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_values_go_where_the_reference_has_them(cell, dtype, value):
    for name in present(make(cell, dtype), "x", "hx", "cx"):
        problem = make(cell, dtype, bidirectional=True)
        getattr(problem, name)[1, ROW, 1] = value
        assert_like_the_reference(problem, f"with {value} in {name}")
    for name in make(cell, dtype).views:
        problem = make(cell, dtype)
        problem.views[name].flat[1] = value
        assert_like_the_reference(problem, f"with {value} in {name}")
