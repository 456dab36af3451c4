"""Cells that no mode names, shipped and users' own: values, gradients and bits. Their laws: cpu/test_algebra.py."""

import json
import re

import numba
import numpy as np
import pytest
from gradcheck import assert_gradients
from messages import raises, says
from other_cells import KINDS, OWN, cases
from problems import Problem, gradient_problem, problem_of, step_loop
from tolerances import GRADIENTS, OUTPUTS, assert_outputs_close, assert_same_results

import rnnkit
from rnnkit import cells
from rnnkit.descriptor.saved import descriptor_json, descriptor_of

in_each_dtype = pytest.mark.parametrize(("cell", "dtype"), cases())
in_float64 = pytest.mark.parametrize(("cell", "dtype"), cases(["float64"]))
SIZES = {
    "stack": dict(hidden_size=17, num_layers=2),
    "two-directions": dict(hidden_size=5, num_layers=2, bidirectional=True),
}
of_each_size = pytest.mark.parametrize("size", SIZES)


def network(cell, size, dtype="float64", lengths=(4, 0, 6, 1, 3)):
    return problem_of(cell, **SIZES[size], dtype=dtype, seq_len=6, batch_size=5, lengths=lengths)


# Values and gradients


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", (KINDS | OWN).values(), ids=KINDS | OWN)
def test_gradients_of_the_equations_are_right(kind, seed):
    assert all(row.right for row in rnnkit.check_cell(kind, seed))


@of_each_size
@in_each_dtype
def test_values_equal_the_twin(cell, dtype, size):
    problem = network(cell, size, dtype)
    assert_outputs_close(problem.forward(), problem.reference(), dtype)


@of_each_size
@in_float64
def test_gradients_equal_central_differences(cell, dtype, size):
    assert_gradients(*gradient_problem(network(cell, size)), seed=5)


# Bits


@of_each_size
@in_each_dtype
def test_every_way_to_run_has_the_same_bits(cell, dtype, size):
    problem = network(cell, size, dtype)
    expected = problem.forward()
    gradients, plan = problem.backward(expected.workspace), rnnkit.prepare(problem.desc, problem.w)
    planned = plan.infer(*problem.inputs[1:], lengths=problem.lengths_array)
    assert_same_results(planned, expected, OUTPUTS)
    kept = problem.forward(checkpoint_steps=2)
    assert_same_results(kept, expected, OUTPUTS)
    assert_same_results(problem.backward(kept.workspace), gradients, GRADIENTS)
    again = problem.forward(workspace=kept.workspace)
    assert_same_results(again, expected, OUTPUTS)
    assert_same_results(problem.backward(again.workspace), gradients, GRADIENTS)
    if not problem.bidirectional:
        assert_same_results(step_loop(problem), plan.infer(*problem.inputs[1:]), OUTPUTS)


@pytest.mark.cores(2)
@in_float64
@pytest.mark.usefixtures("threads_as_before")
def test_threads_change_no_bit(cell, dtype):
    sizes = dict(hidden_size=70, num_layers=2, bidirectional=True, seq_len=40, batch_size=9, input_size=16)
    problem, results = problem_of(cell, **sizes, dtype=dtype), []
    for threads in (1, 2):
        numba.set_num_threads(threads)
        found = problem.forward()
        results.append((found, problem.backward(found.workspace)))
    for one, two, names in zip(*results, (OUTPUTS, GRADIENTS), strict=True):
        assert_same_results(one, two, names)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activations", [(), (cells.Sigmoid(), cells.Tanh(), cells.Tanh())])
def test_activated_lstm_has_the_bits_of_the_built_in_one(dtype, activations):
    problem = Problem(cells.ActivatedLSTM(*activations), hidden_size=17, num_layers=2, dtype=dtype, seq_len=6)
    built_in = problem.twin(mode="lstm")
    built_in.__dict__["w"] = problem.w
    found, expected = problem.forward(), built_in.forward()
    assert_same_results(found, expected, OUTPUTS)
    assert_same_results(problem.backward(found.workspace), built_in.backward(expected.workspace), GRADIENTS)


# What they are given


def test_vector_of_the_indrnn_is_drawn_from_zero_to_one():
    u = rnnkit.weight_views(desc := rnnkit.RNNDescriptor(cells.IndRNN, 3, 500), rnnkit.init_weights(desc, 0))["u_l0"]
    assert [block.name for block in rnnkit.weight_layout(desc)] == ["weight_ih_l0", "bias_ih_l0", "u_l0"]
    assert 0 <= u.min() < 0.01 and 0.99 < u.max() <= 1


KNOWN = "Sigmoid, Tanh, Relu, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh, HardSigmoid, Elu, Softsign, Softplus"
REFUSED = [
    (cells.PeepholeLSTM(gate="tanh"), TypeError, f"PeepholeLSTM's gate | {KNOWN} | str"),
    (cells.IndRNN(cells.LeakyRelu("a")), TypeError, "IndRNN's activation, alpha | float | str"),
    (cells.IndRNN(cells.LeakyRelu(True)), TypeError, "IndRNN's activation, alpha | float | bool"),
    (cells.IndRNN(cells.Elu(0)), ValueError, "IndRNN's activation, alpha | finite | 0"),
    (cells.IndRNN(cells.Affine(1, float("nan"))), ValueError, "IndRNN's activation, beta | finite | nan"),
    (cells.SLSTM(sigmoid_forget=1), TypeError, "SLSTM's sigmoid_forget | bool | int"),
]


@pytest.mark.parametrize(("kind", "error", "message"), REFUSED)
def test_wrong_parameter_of_a_cell_is_refused(kind, error, message):
    with raises(error, f"RNNDescriptor: mode, {message}"):
        rnnkit.RNNDescriptor(kind, 3, 4)


def test_activations_tell_cells_apart():
    activations = cells.Tanh, cells.Softsign(), cells.Tanh()
    first, second, third = (rnnkit.RNNDescriptor(cells.IndRNN(one), 3, 4) for one in activations)
    assert first == third != second and hash(first) == hash(third) and cells.Tanh() != cells.Softsign() != ()
    assert repr(second) == "RNNDescriptor(IndRNN(activation=Softsign()), 3, 4)"
    w, x = rnnkit.init_weights(first, 0), np.ones((2, 1, 3), np.float32)
    whole, real = (rnnkit.RNNDescriptor(cells.IndRNN(cells.Affine(a, b)), 3, 4) for a, b in ((2, 1), (2.0, 1.0)))
    assert whole == real and rnnkit.infer(whole, w, x).y.dtype == "float32"
    assert not np.array_equal(rnnkit.infer(first, w, x).y, rnnkit.infer(second, w, x).y)


@pytest.mark.parametrize("gate", [[], ["Swish"], [["Tanh"]], ["Tanh", 1.0], ["LeakyRelu"]], ids=str)
def test_wrong_activation_in_a_file_is_refused(gate):
    text = descriptor_json(rnnkit.RNNDescriptor(cells.PeepholeLSTM, 3, 4))
    assert '"gate": ["Sigmoid"]' in text
    with pytest.raises(ValueError, match=re.escape(f"activation {gate}")):
        descriptor_of(text.replace('["Sigmoid"]', json.dumps(gate)), cells.PeepholeLSTM)


def test_wrong_number_of_an_activation_in_a_file_is_refused():
    text = descriptor_json(rnnkit.RNNDescriptor(cells.IndRNN(cells.Elu(0.5)), 3, 4)).replace("0.5", "-0.5")
    with pytest.raises(ValueError, match=says("RNNDescriptor: mode, IndRNN's activation, alpha", "finite", 0, -0.5)):
        descriptor_of(text, cells.IndRNN)
