"""Cells that no mode names, shipped and users' own: values, gradients and bits, and what the public functions promise.
Their laws: cpu/test_algebra.py."""

import json
import math
import re
from typing import NamedTuple

import numba
import numpy as np
import own_cells
import pytest
from gradcheck import assert_gradients
from messages import says
from other_cells import KINDS, cases
from problems import Problem, gradient_problem, problem_of, step_loop
from tolerances import GRADIENTS, OUTPUTS, assert_outputs_close, assert_same_results

import rnnkit
from rnnkit import cells
from rnnkit.cells import CellError, cell, forward, gradient
from rnnkit.descriptor.saved import descriptor_json, descriptor_of

LENGTHS = 4, 0, 6, 1, 3
in_each_dtype = pytest.mark.parametrize(("cell", "dtype"), cases())
in_float64 = pytest.mark.parametrize(("cell", "dtype"), cases(["float64"]))
SIZES = {
    "stack": dict(hidden_size=17, num_layers=2),
    "two-directions": dict(hidden_size=5, num_layers=2, bidirectional=True),
}
of_each_size = pytest.mark.parametrize("size", SIZES)


def network(cell, size, dtype="float64"):
    return problem_of(cell, **SIZES[size], dtype=dtype, seq_len=6, batch_size=5, lengths=LENGTHS)


# Values and gradients


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


LSTMS = {
    "own": (own_cells.OwnLSTM, {}),
    "own-projected": (own_cells.OwnLSTM, {"proj_size": 3}),
    "own-dropout": (own_cells.OwnLSTM, {"dropout": 0.5}),
    "activated-default": (cells.ActivatedLSTM(), {}),
    "activated": (cells.ActivatedLSTM(cells.Sigmoid(), cells.Tanh(), cells.Tanh()), {}),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "options"), LSTMS.values(), ids=LSTMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lstm_has_the_bits_of_the_built_in_one(kind, options, dtype):
    sizes = dict(hidden_size=19, num_layers=2, bidirectional=True, seq_len=6, batch_size=5, lengths=LENGTHS)
    problem = Problem(kind, **sizes, dtype=dtype, **options)
    built_in = problem.twin(mode="lstm")
    assert rnnkit.weight_layout(problem.desc) == rnnkit.weight_layout(built_in.desc)
    found, expected = problem.forward(), built_in.forward()
    assert_same_results(found, expected, OUTPUTS)
    assert_same_results(problem.backward(found.workspace), built_in.backward(expected.workspace), GRADIENTS)


# What they are given


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


def test_weights_have_a_block_for_each_vector():
    desc = rnnkit.RNNDescriptor(own_cells.Peephole, 3, 4, bidirectional=True, bias="input")
    names = [block.name for block in rnnkit.weight_layout(desc)]
    vectors = ["peephole_i", "peephole_f", "peephole_o"]
    assert names[-8:] == ["bias_ih_l0", "bias_ih_l0_reverse", *(v + s for s in ("_l0", "_l0_reverse") for v in vectors)]
    assert [block.shape for block in rnnkit.weight_layout(desc)[-6:]] == [(4,)] * 6
    assert rnnkit.num_weights(desc) == 2 * (16 * 3 + 16 * 4 + 16 + 3 * 4)
    for kind, low, high in ((own_cells.Independent, -0.5, 0.75), (cells.IndRNN, 0, 1)):
        desc = rnnkit.RNNDescriptor(kind, 3, 500)
        assert [block.name for block in rnnkit.weight_layout(desc)] == ["weight_ih_l0", "bias_ih_l0", "u_l0"]
        u = rnnkit.weight_views(desc, rnnkit.init_weights(desc, 0))["u_l0"]
        assert low <= u.min() < low + 0.02 and high - 0.02 < u.max() <= high


def test_parameters_change_the_equations():
    x, found = np.ones((2, 3, 4), np.float32), []
    for parameters in ({}, {"scale": 3}, {"shift": 2}, {"flipped": True}):
        desc = rnnkit.RNNDescriptor(own_cells.Independent(**parameters), 4, 5)
        assert desc.mode == own_cells.Independent(**parameters) and hash(desc) == hash(desc)
        found.append(rnnkit.infer(desc, rnnkit.init_weights(desc, 0), x).y[0])
    np.testing.assert_allclose(found[1], 2 * found[0], rtol=1e-6)
    np.testing.assert_allclose(found[2], 2 + found[0], rtol=1e-6)
    assert np.array_equal(found[3], -found[0])


def test_cells_without_parameters_are_not_equal():
    first, second = (rnnkit.RNNDescriptor(own_cells.__dict__[name], 3, 4) for name in ("OwnLSTM", "Peephole"))
    assert first != second and first == rnnkit.RNNDescriptor(own_cells.OwnLSTM(), 3, 4)
    assert rnnkit.num_weights(first) != rnnkit.num_weights(second)


def test_class_without_the_decorator_is_refused():
    class Plain(NamedTuple):
        output = forward("a h")(lambda self, a: (a, a))

    got = "Plain", "@rnnkit.cells.cell"
    for given in (Plain, Plain()):
        with pytest.raises(TypeError, match=says("RNNDescriptor: mode", *got)):
            rnnkit.Network(given, 3, 4)
    with pytest.raises(TypeError, match=says("load: cell", None, *got)):
        rnnkit.load("net", cell=Plain)


STATES = dict(mode=KINDS["slstm-sigmoid"], hidden_size=5, num_layers=2, seq_len=6, batch_size=5)  # a cell of several


def test_several_states_are_a_tuple():
    problem = Problem(**STATES, bidirectional=True)
    c, n, m = problem.cx
    sizes = "(num_layers*num_directions=4, batch_size=5, hidden_size=5)"
    for given, where, facts in [
        (c, "cx", ("tuple of 3", "c, n, m", (4, 5, 5))),
        ((c, n), "cx", ("tuple of 3", "c, n, m", 2)),
        ((c, n, m[:, :, :2]), "cx[2]", (sizes, (4, 5, 2))),
    ]:
        with pytest.raises((TypeError, ValueError), match=says(f"forward: {where}", *facts)):
            rnnkit.forward(problem.desc, problem.w, problem.x, problem.hx, given)


def test_state_that_overlaps_an_output_is_refused():
    problem = Problem(**STATES, bidirectional=True)
    desc, w, (c, n, _) = problem.desc, problem.w, problem.cx
    workspace, dw = problem.forward().workspace, np.zeros(w.size + c.size)
    dcy = c, dw[: c.size].reshape(c.shape), n
    with pytest.raises(ValueError, match=says("backward: dw", "memory", "dcy")):
        rnnkit.backward(desc, w, workspace, dcy=dcy, dw=dw[: w.size])
    with pytest.raises(ValueError, match=says("forward: cx", "workspace")):
        rnnkit.forward(desc, w, problem.x, problem.hx, (c, n, workspace.state("m", 0)[2:]), workspace=workspace)


def test_workspace_has_the_states_of_every_step():
    problem = Problem(**STATES, bidirectional=True, lengths=LENGTHS)
    found = problem.forward()
    for number, name in enumerate(problem.desc.states):
        after = found.workspace.state(name, 1)
        for n, length in enumerate(LENGTHS):
            assert np.array_equal(after[length - 1, n] if length else problem.cx[number][2, n], found.cy[number][2, n])
    assert np.array_equal(found.workspace.state("h", 1, 1), found.y[:, :, 5:])
    assert np.array_equal(found.workspace.cell(0), found.workspace.state("c", 0))
    with pytest.raises(ValueError, match=says("state: name", "h", "c", "n", "m", "'q'")):
        found.workspace.state("q", 0)


def test_own_cell_is_saved_and_loaded_with_its_class(tmp_path):
    net = rnnkit.Network(own_cells.Independent(scale=2), 3, 4, seed=0)
    net.save(tmp_path / "net")
    found = rnnkit.load(tmp_path / "net", cell=own_cells.Independent)
    assert found.desc == net.desc and np.array_equal(found.weights, net.weights)
    assert repr(found).startswith("<Network: RNNDescriptor(Independent(scale=2.0, shift=0, flipped=False), 3, 4)")
    with pytest.raises(ValueError, match=says("load: path", "load(path, cell=Independent)")):
        rnnkit.load(tmp_path / "net")
    with pytest.raises(ValueError, match=says("load: path", "Independent", "OwnLSTM")):
        rnnkit.load(tmp_path / "net", cell=own_cells.OwnLSTM)
    with pytest.raises(TypeError, match=says("load: cell", None, "int")):
        rnnkit.load(tmp_path / "net", cell=3)


def test_shipped_cell_is_loaded_without_its_class(tmp_path):
    net = rnnkit.Network(KINDS["peephole-hard"], 3, 4, seed=0)
    net.save(tmp_path / "net")
    for found in (rnnkit.load(tmp_path / "net"), rnnkit.load(tmp_path / "net", cell=cells.PeepholeLSTM)):
        assert found.desc == net.desc and np.array_equal(found.weights, net.weights)
    text = descriptor_json(net.desc)
    for name in ("Sigmoid", "cell", "__all__", "Nobody"):  # what that module has beside cells, and what it has not
        with pytest.raises(ValueError, match=f"cell {name}\\b"):
            descriptor_of(text.replace("PeepholeLSTM", name))


def scaled(factor):
    """A cell of the same name for each factor, which is a part of its source."""

    @cell(gates="a")
    class Scaled(NamedTuple):
        @forward("a h")
        def output(self, a):
            return a, a * factor

        back = gradient("da")(lambda self, dh: dh * factor)

    return Scaled


def test_machine_code_of_cells_of_one_name_is_kept_apart():
    """In the names of their machine code, which one process may load for both, and in those of files."""
    descs = [rnnkit.RNNDescriptor(scaled(factor), 3, 4) for factor in (0.5, 2, 2)]
    first, second, again = (type(desc.cell).__name__ for desc in descs)
    assert first != second == again and first.startswith("Scaled_")
    w, x = rnnkit.init_weights(descs[0], 0), np.ones((1, 2, 3), np.float32)
    y = [rnnkit.infer(desc, w, x).y for desc in descs]
    assert np.array_equal(4 * y[0], y[1]) and np.array_equal(y[1], y[2])


def importing(self, a):
    import math

    return a, a * math.pi


def wide(self, a):
    return a, a * abs(-1.5 + 2j)


@pytest.mark.parametrize(
    ("function", "facts"), [(importing, ["import at the top of the file"]), (wide, ["float32 for h", "float64"])]
)
def test_error_of_compilation_names_the_stage(function, facts):
    @cell(gates="a")
    class Mine(NamedTuple):
        output = forward("a h")(function)
        back = gradient("da")(lambda self, dh: dh)

    desc = rnnkit.RNNDescriptor(Mine, 3, 4)
    where = f"cell Mine: stage {function.__name__} (test_shipped_cells.py:"
    with pytest.raises(CellError, match=says(where, *facts)):
        rnnkit.infer(desc, rnnkit.init_weights(desc, 0), np.ones((2, 1, 3), np.float32))


PLACE = 1.0, 2.0


def turned(x, by=np.e):
    return x + by


def test_numbers_of_modules_take_the_dtype_of_the_network():
    @cell(gates="a")
    class Turning(NamedTuple):
        @forward("a h")
        def output(self, a):
            return a, min(turned(a) * math.pi + own_cells.SLOPE + PLACE[1], math.inf)

        back = gradient("da")(lambda self, dh: dh * math.pi)

    desc = rnnkit.RNNDescriptor(Turning, 3, 4, bias="none")
    y = rnnkit.infer(desc, np.zeros(rnnkit.num_weights(desc), np.float32), np.ones((1, 1, 3), np.float32)).y
    assert (y == np.float32(np.e) * np.float32(math.pi) + np.float32(own_cells.SLOPE) + 2).all()


def test_streams_equal_the_plan():
    problem = Problem(**STATES)
    plan, x = rnnkit.prepare(problem.desc, problem.w), problem.x
    stream, expected = plan.stream(5), plan.infer(x)
    for row, values in zip(x[:3], expected.y, strict=False):
        assert np.array_equal(stream.step(row, rows=[0, 1, 2, 3, 4]), values)
    again = plan.stream(5)
    again.restore(stream.state)
    for row, values in zip(x[3:], expected.y[3:], strict=True):
        assert np.array_equal(again.step(row), values)
    stream.run(x[3:])
    for one, other in zip(stream.state.values(), again.state.values(), strict=True):
        assert np.array_equal(one, other)
