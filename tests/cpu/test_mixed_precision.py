"""Training with products of bfloat16: the equations on rounded numbers, and the same bits every way."""

import warnings

import numba
import numpy as np
import problems
import pytest
from combinations import nightly
from messages import raises
from optional import needs
from problems import Problem, problem_of
from several_states import arrays_of, as_given, each_of
from tolerances import GRADIENTS, OUTPUTS, assert_close, assert_gradient_close, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.cells import unrolled
from rnnkit.cpu import reduced
from rnnkit.equations.namespaces import namespace

FORM = {"precision": "bfloat16"}
CELLS = (
    *("lstm", "gru", nightly("tanh"), nightly("relu"), nightly("gru-reset-before"), nightly("lstm-clipped")),
    *map(nightly, ("peephole", "indrnn", "janet", "slstm", "cornn", "lem", "multiplicative", "fastgrnn", "minimal")),
)
ALL = *CELLS, nightly("lstm-projected"), nightly("slstm-heads")
SIZES = dict(dtype="float32", input_size=9, hidden_size=17, seq_len=7, batch_size=5)


def gradients(problem, workspace, scale=1.0, **options):
    cotangents = (each_of(lambda one: one * np.float32(scale), given) for given in problem.cotangents)
    return rnnkit.backward(problem.desc, problem.w, workspace, *cotangents, **options)


def trained(problem, **options):
    result = problem.forward(**FORM, **options)
    return result, gradients(problem, result.workspace)


def assert_same_training(found, expected):
    assert_same_results(found[0], expected[0], OUTPUTS)
    assert_same_results(found[1], expected[1], GRADIENTS)


@pytest.fixture
def rounded_products(monkeypatch):
    """PyTorch's operations with both sides of each product, and its gradient, rounded to bfloat16."""
    torch = needs("torch")

    def near(values):
        return values.float().bfloat16().double()

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, matrix, bias):
            ctx.save_for_backward(near(x), near(matrix))
            total = near(x) @ near(matrix).T
            return total if bias is None else total + bias

        @staticmethod
        def backward(ctx, dproduct):
            x, matrix = ctx.saved_tensors
            rows, inputs = near(dproduct).reshape(-1, len(matrix)), x.reshape(-1, x.shape[-1])
            dbias = dproduct.reshape(-1, len(matrix)).sum(0) if ctx.needs_input_grad[2] else None
            return near(dproduct) @ matrix, rows.T @ inputs, dbias

    for function in "unrolled", "step":  # the products with W, and those with R
        monkeypatch.setattr(namespace(function, "torch"), "linear", lambda *operands: Product.apply(*operands))
    return torch


@pytest.mark.parametrize("rows", [5, 1])
@pytest.mark.parametrize("cell", CELLS)
def test_values_and_gradients_are_those_of_rounded_products(rounded_products, cell, rows):
    """One step: after more, the last bit of a sum decides how the next product rounds it."""
    torch, problem = rounded_products, problem_of(cell, **SIZES | {"seq_len": 1, "batch_size": rows})
    leaves = [torch.tensor(np.float64(one), requires_grad=True) for one in (problem.w, problem.x, problem.hx)]
    cx = as_given([torch.tensor(np.float64(one)) for one in arrays_of(problem.cx)])
    y = unrolled(problem.desc, "torch")(*leaves, cx).y
    y.backward(torch.tensor(np.float64(problem.dy)))
    result = problem.forward(**FORM)
    found = rnnkit.backward(problem.desc, problem.w, result.workspace, problem.dy)
    assert_close("y", result.y, y.detach().numpy(), "float32")
    for name, leaf in zip(("dw", "dx", "dhx"), leaves, strict=True):
        assert_gradient_close(name, getattr(found, name), leaf.grad.numpy(), "float32")
    full = rnnkit.forward(problem.desc, *problem.inputs)
    assert np.abs(full.y - result.y).max() > 1e-6  # they are rounded


@pytest.mark.parametrize("cell", ALL)
@pytest.mark.parametrize("fields", [{}, {"num_layers": 2, "lengths": (7, 0, 3, 1, 6)}, {"bidirectional": True}])
def test_outputs_have_the_bits_of_a_plan(cell, fields):
    problem = problem_of(cell, **SIZES | fields)
    plan = problem.desc, problem.w
    expected = rnnkit.prepare(*plan, **FORM).infer(*problem.inputs[1:], **problem.options)
    found = rnnkit.infer(problem.desc, *problem.inputs, **problem.options, **FORM)
    for results in found, problem.forward(**FORM):
        assert_same_results(results, expected, OUTPUTS)


@pytest.mark.usefixtures("threads_as_before")
@pytest.mark.parametrize("cell", ALL)
def test_checkpoints_threads_and_sequences_alone_give_the_same_bits(cell):
    problem = problem_of(cell, **SIZES | {"num_layers": 2, "lengths": (7, 0, 3, 1, 6)})
    expected = trained(problem)
    assert_same_training(trained(problem, checkpoint_steps=3), expected)
    numba.set_num_threads(1)
    assert_same_training(trained(problem), expected)
    rows = gradients(problem, expected[0].workspace, per_sequence=True)
    assert_same_bits("dx", rows.dx, expected[1].dx)
    assert_close("dw", rows.dw.sum(0), expected[1].dw, "float32")


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 16, 15, 1), (3, 1, 17, 33), (40, 33, 64, 40), (0, 4, 5, 3)])
@pytest.mark.parametrize("mode", ["gru", nightly("lstm"), nightly("rnn_tanh")])
def test_odd_sizes_are_near_full_precision(mode, sizes):
    """One step and row, sizes about the vector and the tile, more rows than a block, and none."""
    names = "seq_len", "batch_size", "hidden_size", "input_size"
    problem = Problem(mode, dtype="float32", **dict(zip(names, sizes, strict=True)))
    result, found = trained(problem)
    full = problem.forward()
    expected = gradients(problem, full.workspace)
    for one, other in zip((result.y, *found), (full.y, *expected), strict=True):
        if other is not None and other.size:
            np.testing.assert_allclose(one, other, rtol=0, atol=0.03 * max(np.abs(other).max(), 1e-6))


@pytest.mark.parametrize("exponent", [-45, 40])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_size_of_the_loss_does_not_matter(mode, exponent):
    """A power of two on the loss is one on each gradient: rows are scaled before they are rounded."""
    problem, scale = Problem(mode, **SIZES), 2.0**exponent
    workspace = problem.forward(**FORM).workspace
    found, expected = gradients(problem, workspace, scale), gradients(problem, workspace)
    for name, one, other in zip(found._fields, found, expected, strict=True):
        if other is not None:
            assert_same_bits(name, one, other * np.float32(scale))


def test_nonfinite_gradients_stay_in_their_sequence():
    problem = Problem("lstm", **SIZES)
    dy = problem.dy.copy()
    dy[2, 1], dy[4, 3] = np.inf, np.nan
    found = rnnkit.backward(problem.desc, problem.w, problem.forward(**FORM).workspace, dy)
    expected = rnnkit.backward(problem.desc, problem.w, problem.forward(**FORM).workspace, problem.dy)
    assert not np.isfinite(found.dx[0, [1, 3]]).any()
    assert_same_bits("dx", found.dx[:, [0, 2, 4]], expected.dx[:, [0, 2, 4]])


def test_dropout_noises_masks_and_given_dw_are_those_of_full_precision():
    problem = Problem("lstm", **SIZES, num_layers=2, dropout=0.5, masked=True)
    result, found = trained(problem)
    full = problem.forward()
    np.testing.assert_array_equal(result.y[-1, -1], full.y[-1, -1])  # a sequence without a step: hx
    np.testing.assert_allclose(result.y, full.y, rtol=0, atol=0.02)
    start = np.ones_like(problem.w)
    added = gradients(problem, result.workspace, dw=start.copy()).dw
    assert_close("dw", added, found.dw + start, "float32")


# With one unit and feature the packed weights have the same size in both.
@pytest.mark.parametrize("fields", [{"bidirectional": True}, {"input_size": 1, "hidden_size": 1}])
def test_calls_of_both_precisions_share_memory(fields):
    problem = Problem("gru", **SIZES | {"seq_len": 60} | fields)  # so long that weights are packed in both
    workspace, both, expected = None, (None, "bfloat16"), {}
    for precision in both:
        alone = problem.forward(precision=precision)
        found = gradients(problem, alone.workspace)
        expected[precision] = [one.copy() for one in (alone.y, found.dx, found.dw)]
    for precision in both * 2:  # what is prepared for forward stays while no backward runs
        workspace = problem.forward(precision=precision, workspace=workspace).workspace
        first = expected[precision][0][..., : problem.hidden_size]
        assert_same_bits("y", np.ascontiguousarray(workspace.hidden(0)), np.ascontiguousarray(first))
    for precision in both * 2:
        result = problem.forward(precision=precision, workspace=workspace)
        workspace, found = result.workspace, gradients(problem, result.workspace)
        results = result.y, found.dx, found.dw
        for name, one, other in zip(("y", "dx", "dw"), results, expected[precision], strict=True):
            assert_same_bits(name, one, other)
        y = rnnkit.infer(problem.desc, *problem.inputs, precision=precision).y
        assert_same_bits("y", y, expected[precision][0])


REFUSED = [({}, "int8"), ({}, "bfloat16-native"), ({}, True), ({"dtype": "float64"}, "bfloat16")]


@pytest.mark.parametrize(("fields", "value"), REFUSED)
def test_other_precisions_are_refused(fields, value):
    problem = Problem("lstm", **SIZES | fields)
    with raises(ValueError, f"forward: precision | None | {fields.get('dtype', 'bfloat16')} | {value!r}"):
        problem.forward(precision=value)


def test_cpu_without_tile_registers_is_named_once(monkeypatch):
    monkeypatch.setattr(reduced, "has_tiles", lambda: False)
    reduced.warn_of_training.cache_clear()
    problem = Problem("gru", **SIZES)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            problem.forward(**FORM)
    (one,) = found
    assert one.category is RuntimeWarning and one.filename == problems.__file__
    assert str(one.message).startswith("forward: products of bfloat16 are no faster than those of float32 on this CPU")
