"""forward, infer, plan.infer and plan.step against the naive twin."""

from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from problems import CASES, CELLS, Problem, dropout_masks, step_loop
from strategies import problems, wide_problems
from tolerances import GRADIENTS, OUTPUTS, assert_close, assert_outputs_close, assert_same_bits, assert_same_results

import rnnkit


def assert_training_forward(problem):
    """Outputs and every step's states equal the reference's with the same dropout masks."""
    result = problem.forward()
    expected = problem.reference(dropout_masks(problem, problem.seed))
    assert_outputs_close(result, expected, problem.dtype)
    for name in ("hidden", "cell") if problem.mode == "lstm" else ("hidden",):
        for row, wanted in enumerate(getattr(expected, name)):
            place = divmod(row, problem.directions)
            found = getattr(result.workspace, name)(*place)
            assert found.shape == wanted.shape
            assert_close(f"{name}{place}", found[problem.valid], wanted[problem.valid], problem.dtype)


def assert_inference(problem):
    """infer and plan.infer equal the reference; so does the loop of plan.step where it can express the problem.

    What is brief enough to run a step at a time through all layers has the bits of what is not.
    """
    expected = problem.reference()
    assert_outputs_close(problem.infer(), expected, problem.dtype)
    plan = rnnkit.prepare(problem.desc, problem.w)
    planned = plan.infer(*problem.inputs[1:], lengths=problem.lengths_array)
    assert_outputs_close(planned, expected, problem.dtype)
    with mock.patch("rnnkit.cpu.route._STEPWISE_WORK", 0):
        again = plan.infer(*problem.inputs[1:], lengths=problem.lengths_array)
    assert_same_results(again, planned, OUTPUTS)
    if not problem.bidirectional and problem.lengths is None and problem.states:
        assert_outputs_close(step_loop(problem), expected, problem.dtype)


@pytest.mark.parametrize(("cell", "dtype"), CASES)
def test_every_combination_equals_the_reference(cell, dtype):
    """A dropout of 1/4 tells the scale 1 / (1 - p) from 1 / p."""
    deep = Problem(**CELLS[cell], dtype=dtype, num_layers=3, dropout=0.25, lengths=(4, 0, 2))
    biases = "both", "input", "recurrent", "none"
    for bias, (input_mode, size), bidirectional in product(biases, (("linear", 3), ("skip", 4)), (False, True)):
        problem = deep.twin(bias=bias, input_mode=input_mode, input_size=size, bidirectional=bidirectional)
        assert_training_forward(problem)
        assert_inference(problem)


@given(problems())
def test_forward_and_inference_equal_the_reference(problem):
    assert_training_forward(problem)
    assert_inference(problem)


@given(problems(bidirectional=False, lengths=None, states=True))
def test_steps_equal_the_reference(problem):
    assert_outputs_close(step_loop(problem), problem.reference(), problem.dtype)


@given(wide_problems())
def test_sizes_around_the_vector_width_equal_the_reference(problem):
    assert_training_forward(problem)
    assert_inference(problem)


@pytest.mark.parametrize("cell", CELLS)
def test_clip_and_dropout_change_the_outputs(cell):
    """Without this the two options could be ignored on both sides."""
    problem = Problem(**CELLS[cell], num_layers=2, dropout=0.5)
    masks = dropout_masks(problem, problem.seed)
    assert set(np.unique(masks)) == {0.0, 2.0}
    assert np.abs(problem.forward().y - problem.infer().y).max() > 1e-3
    if problem.cell_clip:
        assert np.abs(problem.infer().y - problem.twin(cell_clip=None).infer().y).max() > 1e-3


@pytest.mark.parametrize("byte", [0xFF, 0x7F], ids=["nan", "huge"])  # in float32 and in float64 alike
@pytest.mark.parametrize(("cell", "dtype"), CASES)
def test_all_memory_is_written_before_it_is_read(cell, dtype, byte, soil):
    problem = Problem(**CELLS[cell], dtype=dtype, num_layers=3, bidirectional=True, dropout=0.5, lengths=(4, 0, 2))
    outputs = problem.forward()
    gradients, inferred = problem.backward(outputs.workspace), problem.infer()
    calls = soil(byte)
    again = problem.forward()
    assert_same_results(again, outputs, OUTPUTS)
    assert_same_results(problem.backward(again.workspace), gradients, GRADIENTS)
    assert_same_results(problem.infer(), inferred, OUTPUTS)
    assert calls, "nothing was allocated by np.empty: this test no longer tests anything"


@given(problems())
def test_inputs_are_unchanged(problem):
    problem.infer()
    problem.backward(problem.forward().workspace)
    plan = rnnkit.prepare(problem.desc, problem.w)
    plan.infer(*problem.inputs[1:], lengths=problem.lengths_array)
    fresh = problem.twin()
    for name in ("w", "x", "hx", "cx", "lengths_array", "dy", "dhy", "dcy"):
        assert_same_bits(name, getattr(problem, name), getattr(fresh, name))
