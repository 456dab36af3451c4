"""NaN, inf, numbers near the ends of the range, and long sequences: as IEEE arithmetic and the reference have them."""

import numpy as np
import pytest
from child import run_children
from oracle import assert_same, plain, random_problem
from problems import CELLS, Problem
from tolerances import OUTPUTS, TABLE, assert_close, assert_same_bits

import rnnkit

NOT_NUMBERS = (np.nan, -np.nan, np.inf, -np.inf)
LARGE = {"float32": (1e38, -1e38), "float64": (1e300, -1e300)}
SATURATING = [name for name in CELLS if name not in ("relu", "lstm-projected", "lstm-projected-clipped")]


def assert_like(actual, expected, problem, what):
    """NaN, +inf and -inf stand at the same places; everything else is as close as numbers of its own size are."""
    if expected is None:
        return
    for kind in (np.isnan, np.isposinf, np.isneginf):
        different = kind(actual) != kind(expected)
        assert not different.any(), f"{what}: {kind.__name__} differs at {np.argwhere(different)[0]} of {problem}"
    finite = np.isfinite(expected)
    actual, expected = actual[finite].astype(np.float64), expected[finite]
    scale = np.maximum(1.0, np.abs(expected))  # of each number, as one large one says nothing of the others
    assert np.all(np.abs(actual - expected) <= TABLE[problem.dtype].value * scale), f"{what} of {problem}"


def one_unusual_number(trial):
    """One NaN or inf goes where the reference has it; one near the end of the range saturates gates as there."""
    for _ in trial.rounds(10):
        large, dtype = trial.rng.random() < 0.5, str(trial.rng.choice(list(LARGE)))
        cells, names = (SATURATING, ["x"]) if large else (tuple(CELLS), ["x", "hx", "cx", "w"])
        problem = random_problem(trial.rng, cells=cells, dropout=0.0, dtype=dtype, layers=2 if large else 3)
        arrays = {name: getattr(problem, name) for name in names}
        arrays = {name: array for name, array in arrays.items() if array is not None and array.size}
        if not arrays:
            continue
        name, value = str(trial.rng.choice(list(arrays))), trial.rng.choice(LARGE[dtype] if large else NOT_NUMBERS)
        arrays[name].flat[trial.rng.integers(arrays[name].size)] = value
        with np.errstate(all="ignore"):  # the reference's own arithmetic may say what it meets
            expected = problem.reference()
        for found in (problem.forward(), problem.infer()):
            for output in OUTPUTS:
                what = f"{output} with {value} in {name}"
                assert_like(getattr(found, output), getattr(expected, output), problem, what)
        trial.count(inputs=1)


def signs_of_zero(trial):
    """A zero's sign in an input changes no value."""
    for _ in trial.rounds(5):
        problem = random_problem(trial.rng, dropout=0.0)
        twins = problem.twin(), problem.twin()
        for name in ("x", "hx", "cx", "w", "dy", "dhy", "dcy"):
            if getattr(problem, name) is not None:
                zero = trial.rng.random(getattr(problem, name).shape) < 0.3
                for twin, value in zip(twins, (0.0, -0.0), strict=True):
                    getattr(twin, name)[zero] = value
        for results in zip(*map(plain, twins), strict=True):
            for one, other in zip(*results, strict=True):
                assert one is None or np.array_equal(one, other), problem
        trial.count(inputs=1)


def long_sequence(trial, T=100_000):
    """T = 1e5: the reference agrees, in one call, in chunks whose states are carried, and step by step."""
    rng, cell = trial.rng, CELLS[str(trial.rng.choice(["tanh", "gru", "gru-reset-before", "lstm"]))]
    problem = Problem(**cell, hidden_size=2, input_size=1, seq_len=T, batch_size=1, seed=int(rng.integers(2**32)),
                      dtype=str(rng.choice(list(LARGE))))  # fmt: skip
    found = problem.infer()
    outputs = problem.forward()
    assert_same(rnnkit.Infer(*outputs[:3]), found)
    hx, cx, start = problem.hx, problem.cx, 0
    while start < T:
        stop = min(T, start + int(rng.integers(1, T // 5)))
        y, hx, cx = rnnkit.infer(problem.desc, problem.w, problem.x[start:stop], hx, cx)
        assert_same_bits("y", y, found.y[start:stop])
        start = stop
    assert_same_bits("hy", hx, found.hy)
    expected = problem.reference()
    for name in OUTPUTS:
        assert_close(name, getattr(found, name), getattr(expected, name), problem.dtype)
    assert np.isfinite(problem.backward(outputs.workspace).dw).all()
    trial.count(steps=T)


@pytest.mark.parametrize("work", [one_unusual_number, signs_of_zero, long_sequence])
def test_numbers_are_those_of_the_reference(trial, work):
    run_children(trial, work)
