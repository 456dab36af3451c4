"""Random problems, and their right results: the engine's plain calls that have been compared with the reference."""

import warnings
from typing import NamedTuple

import numpy as np
import reference
from problems import CELLS, KINK_MARGIN, Problem, dropout_masks
from strategies import BATCHES, WIDTHS
from tolerances import (
    FINITE_DIFFERENCE,
    GRADIENTS,
    OUTPUTS,
    assert_gradients_close,
    assert_outputs_close,
    assert_same_bits,
)

import rnnkit

SIZES, ROWS = (1, 2, 3, 4, 5, *WIDTHS), (1, 2, 3, 4, *BATCHES)
DTYPES = ("float32", "float64")
STEP = 6e-6  # of a central difference in float64


class Right(NamedTuple):
    """Results that have been compared with the reference; copies."""

    forward: rnnkit.Infer
    backward: rnnkit.Backward
    infer: rnnkit.Infer


def random_problem(rng, steps=6, sizes=SIZES, layers=3, cells=tuple(CELLS), **fixed):
    """A problem of the sizes of tests/support/strategies.py, where vector kernels have their tails."""
    cell = dict(CELLS[rng.choice(cells)])
    hidden_size = int(rng.choice(sizes))
    if "proj_size" in cell:
        hidden_size = max(hidden_size, 2)
        cell["proj_size"] = int(rng.integers(1, hidden_size))
    seq_len, batch_size = int(rng.integers(0, steps + 1)), int(rng.choice(ROWS))
    skip = rng.random() < 0.2
    drawn = cell | dict(
        input_size=hidden_size if skip else int(rng.choice(sizes)),
        hidden_size=hidden_size,
        num_layers=int(rng.integers(1, layers + 1)),
        bidirectional=bool(rng.random() < 0.4),
        bias=str(rng.choice(["both", "input", "recurrent", "none"])),
        input_mode="skip" if skip else "linear",
        dropout=float(rng.choice([0.0, 0.0, 0.5, 1.0])),
        dtype=str(rng.choice(DTYPES)),
        seq_len=seq_len,
        batch_size=batch_size,
        lengths=tuple(int(n) for n in rng.integers(0, seq_len + 1, batch_size)) if rng.random() < 0.5 else None,
        states=bool(rng.random() < 0.7),
        seed=int(rng.integers(2**32)),
    )
    return Problem(**drawn | fixed)


def copied(result):
    """The arrays of a result, own copies: a workspace's are void after the next call."""
    return type(result)(*(None if array is None else np.array(array) for array in result))


def plain(problem):
    """The problem through the three calls, without looking at it."""
    outputs = problem.forward()
    forward = copied(rnnkit.Infer(*outputs[:3]))
    return Right(forward, problem.backward(outputs.workspace), problem.infer())


def right(problem):
    """The results of a problem, after they have been compared with the reference."""
    found, masks = plain(problem), dropout_masks(problem, problem.seed) if problem.dropout else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the reference's own, where numbers are large
        training = problem.reference(masks)
        inference = problem.reference() if masks else training
    assert_outputs_close(found.forward, training, problem.dtype)
    assert_outputs_close(found.infer, inference, problem.dtype)
    if training.kink > 10 * KINK_MARGIN and problem.dtype == "float64":
        assert_directional_derivative(problem, found.backward, masks)
    elif training.kink > KINK_MARGIN:
        precise = problem.twin(dtype="float64")
        assert_gradients_close(found.backward, plain(precise).backward, problem.dtype)
    return found


def assert_directional_derivative(problem, gradients, masks):
    """The gradients times a random direction in all inputs are the reference's central difference."""
    rng = np.random.default_rng(problem.seed)
    inputs = {"x": (problem.x, gradients.dx), "hx": (problem.hx, gradients.dhx), "cx": (problem.cx, gradients.dcx)}
    dw = rnnkit.weight_views(problem.desc, gradients.dw)
    inputs |= {name: (view, dw[name]) for name, view in problem.views.items()}
    inputs = {name: pair for name, pair in inputs.items() if pair[0] is not None}
    directions = {name: rng.uniform(0.5, 1, value.shape) for name, (value, _) in inputs.items()}
    norm = np.sqrt(sum(np.vdot(one, one) for one in directions.values())) or 1.0
    slope = sum(np.vdot(gradient, directions[name]) for name, (_, gradient) in inputs.items()) / norm
    losses = [
        _loss(problem, {name: value + step / norm * directions[name] for name, (value, _) in inputs.items()}, masks)
        for step in (STEP, -STEP)
    ]
    found = (losses[0] - losses[1]) / (2 * STEP)
    bound = FINITE_DIFFERENCE * max(1.0, abs(slope), *map(abs, losses))
    assert abs(found - slope) <= bound, f"slope {slope}, by differences {found}"


def _loss(problem, arrays, masks):
    weights = {name: arrays[name] for name in problem.views}
    outputs = reference.forward(
        weights, arrays["x"], arrays.get("hx"), arrays.get("cx"), mode=problem.mode, hidden_size=problem.hidden_size,
        num_layers=problem.num_layers, bidirectional=problem.bidirectional, proj_size=problem.proj_size,
        cell_clip=problem.cell_clip, reset_after=problem.reset_after, lengths=problem.lengths, masks=masks,
    )  # fmt: skip
    # What is beyond a sequence's length takes no part: y is zero there.
    pairs = zip(outputs[:3], problem.cotangents, strict=True)
    return sum(float(np.vdot(a, d)) for a, d in pairs if a is not None and d is not None)


def assert_same(actual, expected, names=None):
    """All fields of two results have the same bits."""
    for name in names or (GRADIENTS if isinstance(expected, rnnkit.Backward) else OUTPUTS):
        assert_same_bits(name, getattr(actual, name), getattr(expected, name))


def assert_right(problem, expected):
    """The problem, run again as a whole, has the bits of what was compared with the reference."""
    for actual, wanted in zip(plain(problem), expected, strict=True):
        assert_same(actual, wanted)
