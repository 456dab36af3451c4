"""forward, infer, plan.infer and plan.step against the naive twin, and all of them to the same bits."""

from itertools import product
from unittest import mock

import pytest
from hypothesis import given
from problems import CASES, CELLS, FLOAT32, Problem, dropout_masks, step_loop
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


def assert_one_inference(problem):
    """forward without dropout, infer, plan.infer and, where it applies, the loop of plan.step agree bit for bit.

    So does what is brief enough to run a step at a time through all layers with what is not.
    """
    expected, plan = problem.infer(), rnnkit.prepare(problem.desc, problem.w)
    assert_same_results(problem.twin(dropout=0.0).forward(), expected, OUTPUTS)
    assert_same_results(plan.infer(*problem.inputs[1:], lengths=problem.lengths_array), expected, OUTPUTS)
    with mock.patch("rnnkit.cpu.route._STEPWISE_WORK", 0):
        assert_same_results(plan.infer(*problem.inputs[1:], lengths=problem.lengths_array), expected, OUTPUTS)
    if not problem.bidirectional and problem.lengths is None:
        assert_same_results(step_loop(problem.twin(states=True)), problem.twin(states=True).infer(), OUTPUTS)
    return expected


def assert_inference(problem):
    assert_outputs_close(assert_one_inference(problem), problem.reference(), problem.dtype)


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


@given(problems(bidirectional=False, lengths=None))
def test_steps_equal_the_reference(problem):
    assert_inference(problem)


@given(wide_problems())
def test_sizes_around_the_vector_width_equal_the_reference(problem):
    assert_training_forward(problem)
    assert_inference(problem)


# Inference goes through a long input in chunks of a few hundred steps.
LONG = [
    dict(seq_len=700, batch_size=2, num_layers=2),
    dict(seq_len=700, batch_size=2, bidirectional=True),
    dict(hidden_size=256, seq_len=600, batch_size=4, num_layers=2, lengths=(600, 0, 290, 599)),
]


@pytest.mark.parametrize("sizes", LONG)
@pytest.mark.parametrize("cell", FLOAT32)
def test_long_inference_gives_the_same_bits(cell, sizes):
    assert_one_inference(Problem(**CELLS[cell], dtype="float32", **sizes))


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
def test_calls_change_neither_inputs_nor_the_workspace(problem):
    """backward twice gives the same bits: gradients of all inputs, of initial states that were not given too."""
    workspace, plan = problem.forward().workspace, rnnkit.prepare(problem.desc, problem.w)
    result = problem.backward(workspace)
    assert_same_results(problem.backward(workspace), result, GRADIENTS)
    assert result.dhx.shape == problem.hidden_shape and result.dw.shape == problem.w.shape
    assert (problem.mode == "lstm") == (result.dcx is not None and result.dcx.shape == problem.cell_shape)
    assert {result.dx.dtype, result.dhx.dtype, result.dw.dtype} == {problem.desc.np_dtype}
    problem.infer()
    plan.infer(*problem.inputs[1:], lengths=problem.lengths_array)
    fresh = problem.twin()
    for name in ("w", "x", "hx", "cx", "lengths_array", "dy", "dhy", "dcy"):
        assert_same_bits(name, getattr(problem, name), getattr(fresh, name))
