"""Every gradient: against central differences in float64, float32 against float64, and how backward may be called."""

from itertools import product

import numpy as np
import pytest
from gradcheck import assert_gradients
from hypothesis import assume, given
from problems import CASES, CELLS, FLOAT32, KINK_MARGIN, Problem, gradient_problem, smooth
from strategies import problems, wide_problems
from tolerances import assert_gradient_close, assert_gradients_close, assert_same_bits, assert_same_results

import rnnkit

# A dropout of 1/4 tells the scale 1 / (1 - p) from 1 / p.
THREE_LAYERS = dict(num_layers=3, bidirectional=True, lengths=(2, 4, 0), dropout=0.25)


def assert_right_gradients(problem):
    assert_gradients(*gradient_problem(problem), seed=problem.seed)


def gradients_of(problem):
    return problem.backward(problem.forward().workspace)


@pytest.mark.parametrize("cell", CELLS)
def test_every_combination_has_the_right_gradient(cell):
    biases = "both", "input", "recurrent", "none"
    for bias, input_mode, bidirectional in product(biases, ("linear", "skip"), (False, True)):
        options = {**THREE_LAYERS, "bidirectional": bidirectional, "bias": bias, "input_mode": input_mode}
        assert_right_gradients(smooth(Problem(**CELLS[cell], **options, input_size=4)))


@given(problems(dtype="float64"))
def test_gradients(problem):
    assume(problem.kink > KINK_MARGIN)
    assert_right_gradients(problem)


@given(wide_problems(dtype="float64", mode="lstm") | wide_problems(dtype="float64", mode="gru"))
def test_gradients_around_the_vector_width(problem):
    assume(problem.kink > KINK_MARGIN / 10)
    assert_right_gradients(problem)


@pytest.mark.parametrize("cell", FLOAT32)
def test_float32_equals_float64(cell):
    problem = smooth(Problem(**CELLS[cell], **THREE_LAYERS))
    assert_gradients_close(gradients_of(problem.twin(dtype="float32")), gradients_of(problem), "float32")


@given(wide_problems(dtype="float32", num_layers=2))
def test_float32_equals_float64_around_the_vector_width(problem):
    assume(problem.kink > 1e-5)
    assert_gradients_close(gradients_of(problem), gradients_of(problem.twin(dtype="float64")), "float32")


@pytest.mark.parametrize("lengths", [None, tuple(range(1, 41)), (9,) * 39 + (40,)])
@pytest.mark.parametrize("cell", CELLS)
def test_large_batch_has_the_gradient_of_its_parts(cell, lengths):
    """Backward goes through 1600 rows in chunks of a few steps, and through the 400 of a part at once."""
    whole = Problem(**CELLS[cell], seq_len=40, batch_size=40, bidirectional=True, lengths=lengths)
    expected, dw = gradients_of(whole), np.zeros_like(whole.w)
    for first in range(0, 40, 10):
        rows = slice(first, first + 10)
        arrays = (whole.x, whole.hx, whole.cx, *whole.cotangents)
        x, hx, cx, *cotangents = (None if array is None else array[:, rows] for array in arrays)
        result = rnnkit.forward(whole.desc, whole.w, x, hx, cx, lengths=None if lengths is None else lengths[rows])
        found = rnnkit.backward(whole.desc, whole.w, result.workspace, *cotangents, dw=dw)
        assert_same_bits("dx", found.dx, expected.dx[:, rows])
        assert_same_bits("dhx", found.dhx, expected.dhx[:, rows])
    assert_gradient_close("dw", dw, expected.dw, "float64")


@pytest.mark.parametrize("size", [{}, {"seq_len": 1, "batch_size": 1, "lengths": None}], ids=["", "one row"])
@pytest.mark.parametrize(("cell", "dtype"), CASES)
def test_dw_is_added_into(cell, dtype, size):
    problem = Problem(**CELLS[cell], **THREE_LAYERS | size, dtype=dtype)
    workspace, start = problem.forward().workspace, problem.draw(7, problem.w.shape)
    alone, dw = problem.backward(workspace), start.copy()
    added = problem.backward(workspace, dw=dw)
    assert added.dw is dw
    assert_gradient_close("dw", dw, start.astype(np.float64) + alone.dw, dtype)
    assert_same_results(added, alone, ("dx", "dhx", "dcx"))


GIVEN = [*product(CELLS, ("dy", "dhy", "dy dcy", "dhy dcy")), ("lstm", "dcy")]


@pytest.mark.parametrize(("cell", "given_names"), GIVEN)
def test_absent_cotangents_are_zeros(cell, given_names):
    problem = Problem(**CELLS[cell], **THREE_LAYERS)
    cotangents = {name: getattr(problem, name) for name in ("dy", "dhy", "dcy") if getattr(problem, name) is not None}
    present = {name: array for name, array in cotangents.items() if name in given_names.split()}
    zeros = {name: np.zeros_like(array) for name, array in cotangents.items()}
    workspace = problem.forward().workspace
    absent = rnnkit.backward(problem.desc, problem.w, workspace, **present)
    explicit = rnnkit.backward(problem.desc, problem.w, workspace, **zeros | present)
    assert_gradients_close(absent, explicit, problem.dtype)


def test_backward_uses_the_weights_of_its_own_call():
    """The gradient belongs to the weights of the call: dx is linear in weight_ih of a single layer."""
    problem = Problem(mode="rnn_tanh", dtype="float32")
    workspace = problem.forward().workspace
    doubled = problem.w.copy()
    rnnkit.weight_views(problem.desc, doubled)["weight_ih_l0"] *= 2
    dx = rnnkit.backward(problem.desc, problem.w, workspace, *problem.cotangents).dx
    assert_same_bits("dx", rnnkit.backward(problem.desc, doubled, workspace, *problem.cotangents).dx, 2 * dx)
