"""NaN, inf, numbers near the ends of the range, and long sequences: as IEEE arithmetic and the reference have them."""

import platform
import sys

import numpy as np
import pytest
from child import run_children
from float_modes import MODES, in_mode
from oracle import assert_same, plain, random_problem
from problems import CELLS, Problem
from tolerances import OUTPUTS, TABLE, assert_close, assert_same_bits

import rnnkit

NOT_NUMBERS = (np.nan, -np.nan, np.inf, -np.inf)
LARGE = {"float32": (1e38, -1e38, 3.4e38), "float64": (1e300, -1e300, 1.7e308)}
TINY = {"float32": (1e-45, -1e-45, 1e-40, 1.1e-38), "float64": (5e-324, -5e-324, 1e-310, 2.2e-308)}
LIMIT = {"float32": 2.0**-100, "float64": 2.0**-960}
SATURATING = [name for name in CELLS if name not in ("relu", "lstm-projected", "lstm-projected-clipped")]


def quietly(problem):
    """The reference, whose own arithmetic may say what it meets."""
    with np.errstate(all="ignore"):
        return problem.reference()


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


def assert_like_the_reference(problem, where):
    expected = quietly(problem)
    for found in (problem.forward(), problem.infer()):
        for name in OUTPUTS:
            assert_like(getattr(found, name), getattr(expected, name), problem, f"{name} with {where}")


def spoiled(problem, rng, values, names):
    """The problem with one value somewhere in one of the arrays."""
    arrays = {name: getattr(problem, name) for name in names}
    name = str(rng.choice([name for name, array in arrays.items() if array is not None and array.size]))
    value = values[rng.integers(len(values))]
    arrays[name].flat[rng.integers(arrays[name].size)] = value
    return f"{value} in {name}"


def not_numbers(trial):
    """One NaN or inf in any input goes where the reference has it."""
    for _ in trial.rounds(5):
        problem = random_problem(trial.rng, dropout=0.0)
        where = spoiled(problem, trial.rng, NOT_NUMBERS, ("x", "hx", "cx", "w"))
        assert_like_the_reference(problem, where)
        trial.count(inputs=1)


def gradients_of_not_numbers(trial):
    """A NaN in a cotangent turns no number of another sequence, and no weight's gradient stays a number in silence."""
    for _ in trial.rounds(5):
        problem = random_problem(trial.rng, dropout=0.0, seq_len=3, lengths=None, batch_size=5)
        clean, row = problem.twin(), int(trial.rng.integers(5))
        problem.dhy[-1, row] = np.nan
        found, wanted = plain(problem).backward, plain(clean).backward
        others = [n for n in range(5) if n != row]
        for name in ("dx", "dhx", "dcx"):
            got, right = getattr(found, name), getattr(wanted, name)
            if right is not None:
                assert_same_bits(name, got[:, others], right[:, others])
        if problem.mode != "rnn_relu":
            assert np.isnan(found.dhx[:, row]).any() and np.isnan(found.dw).any(), problem
        trial.count(inputs=1)


def padding(trial):
    """Whatever stands beyond a sequence's length in x and dy, NaN included, touches no bit."""
    for _ in trial.rounds(5):
        problem = random_problem(trial.rng, lengths=None, dropout=float(trial.rng.choice([0.0, 0.5])))
        lengths = tuple(int(n) for n in trial.rng.integers(0, problem.seq_len + 1, problem.batch_size))
        clean, dirty = problem.twin(lengths=lengths), problem.twin(lengths=lengths)
        for name in ("x", "dy"):
            values = trial.rng.choice(NOT_NUMBERS + LARGE[problem.dtype], getattr(dirty, name).shape)
            np.copyto(getattr(dirty, name), values.astype(problem.dtype), where=~dirty.valid[:, :, None])
        for actual, expected in zip(plain(dirty), plain(clean), strict=True):
            assert_same(actual, expected)
        trial.count(inputs=2)


def large_numbers(trial):
    """One number near the end of the range saturates gates, and nothing becomes NaN that the reference has not so."""
    for _ in trial.rounds(5):
        dtype = str(trial.rng.choice(list(LARGE)))
        problem = random_problem(trial.rng, cells=SATURATING, dropout=0.0, dtype=dtype, layers=2)
        if problem.x.size == 0:
            continue
        where = spoiled(problem, trial.rng, LARGE[dtype][:2], ("x",))
        assert_like_the_reference(problem, where)
        trial.count(inputs=1)


def tiny_numbers(trial):
    """A network that passes its input on gives 0 for numbers too small to count, and the same bits for others."""
    for _ in trial.rounds(5):
        mode = str(trial.rng.choice(["rnn_relu", "rnn_tanh"]))
        dtype = str(trial.rng.choice(list(TINY)))
        size, layers = int(trial.rng.choice([1, 3, 16, 33])), int(trial.rng.integers(1, 4))
        desc = rnnkit.RNNDescriptor(mode, size, size, layers, bias="none", dtype=dtype)
        w = np.zeros(rnnkit.num_weights(desc), dtype)
        for name, view in rnnkit.weight_views(desc, w).items():
            if name.startswith("weight_ih"):
                view[:] = np.eye(size)
        limit, zero = np.array(LIMIT[dtype], dtype), np.zeros((), dtype)
        values = (*TINY[dtype], 0.0, -0.0, limit, -limit, np.nextafter(limit, zero), 3 * limit)
        x = trial.rng.choice(np.array(values, dtype), (3, int(trial.rng.integers(1, 7)), size))
        expected = np.where(abs(x) < limit, zero, np.maximum(x, 0) if mode == "rnn_relu" else x)
        plan = rnnkit.prepare(desc, w)
        steps = np.stack([plan.step(row, None).y for row in x])
        for found in (rnnkit.infer(desc, w, x).y, rnnkit.forward(desc, w, x).y, steps):
            assert_same_bits(f"y of {desc}", found + zero, expected + zero)  # but for the sign of zero
        trial.count(inputs=x.size)


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


def float_modes(trial):
    """Rounding and flushing of the calling thread change no bit."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return
    for _ in trial.rounds(5):
        problem = random_problem(trial.rng)
        expected = plain(problem)  # which draws the arrays, too
        with in_mode(MODES[str(trial.rng.choice(list(MODES)))]):
            found = plain(problem)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        trial.count(inputs=1)


WORKS = [float_modes, not_numbers, gradients_of_not_numbers, padding, large_numbers, tiny_numbers, signs_of_zero]


def several(trial):
    """A few rounds of each, in one process: to load the kernels takes longer than a round."""
    share = trial.seconds_left / len(WORKS)
    for work in WORKS:
        work(trial.part(share))


def long_sequence(trial, T=100_000):
    """T = 1e5: the reference agrees, in one call, in chunks whose states are carried, and step by step."""
    rng, cell = trial.rng, CELLS[str(trial.rng.choice(["tanh", "gru", "gru-reset-before", "lstm"]))]
    problem = Problem(**cell, hidden_size=2, input_size=1, seq_len=T, batch_size=1, seed=int(rng.integers(2**32)),
                      dtype=str(rng.choice(list(TINY))))  # fmt: skip
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


def nan_in_a_long_sequence(trial, T=100_000):
    """From a NaN on, everything is NaN until the end; before it, no bit is touched."""
    for _ in trial.rounds():
        net = rnnkit.LSTM(1, 3, num_layers=2, seed=0)
        x = trial.rng.standard_normal((T, 3, 1), np.float32)
        clean, at = net.infer(x).y, int(trial.rng.integers(T))
        x[at, 1] = np.nan
        found = net.infer(x)
        assert np.isnan(found.y[at:, 1]).all() and np.isnan(found.hy[:, 1]).all()
        assert_same_bits("y", found.y[:at], clean[:at])
        assert_same_bits("y", found.y[:, [0, 2]], clean[:, [0, 2]])
        trial.count(steps=2 * T)


@pytest.mark.parametrize(
    "work", [pytest.param(several, marks=pytest.mark.share(3)), long_sequence, nan_in_a_long_sequence]
)
def test_numbers_are_those_of_the_reference(trial, work):
    run_children(trial, work)
