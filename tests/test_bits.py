"""Equal calls give equal bits, every way of running forward gives the same, and dropout is what its seed says."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from problems import CASES, CELLS, FLOAT32, REDUCED, Problem, dropout_masks, step_loop
from strategies import problems, wide_problems
from tolerances import GRADIENTS, OUTPUTS, assert_close, assert_same_bits, assert_same_results

import rnnkit
from rnnkit_kernels.machine import shapes

DROPPING = dict(num_layers=3, bidirectional=True, dropout=0.5)


def assert_one_forward(problem):
    """forward, infer, plan.infer and, where it applies, the loop of plan.step agree bit for bit."""
    expected = problem.infer()
    assert_same_results(problem.forward(), expected, OUTPUTS)
    plan = rnnkit.prepare(problem.desc, problem.w)
    planned = plan.infer(*problem.inputs[1:], lengths=problem.lengths_array)
    assert_same_results(planned, expected, OUTPUTS)
    if not problem.bidirectional and problem.lengths is None:
        assert_same_results(step_loop(problem.twin(states=True)), problem.twin(states=True).infer(), OUTPUTS)


@given(problems(dropout=0.0))
def test_every_way_forward_gives_the_same_bits(problem):
    assert_one_forward(problem)


@given(wide_problems(dropout=0.0))
def test_every_way_forward_gives_the_same_bits_around_the_vector_width(problem):
    assert_one_forward(problem)


@pytest.mark.parametrize("cell", FLOAT32)
def test_a_long_inference_gives_the_same_bits(cell):
    """Inference may go through a long input in chunks of steps."""
    assert_one_forward(Problem(**CELLS[cell], dtype="float32", seq_len=700, batch_size=2, num_layers=2))
    assert_one_forward(Problem(**CELLS[cell], dtype="float32", seq_len=700, batch_size=2, bidirectional=True))


@pytest.mark.parametrize("cell", FLOAT32)
def test_a_long_inference_knows_the_lengths_in_every_chunk(cell):
    """Stacked layers go through a long input a few hundred steps at a time."""
    sizes = dict(hidden_size=256, seq_len=600, batch_size=4, num_layers=2, dtype="float32")
    assert_one_forward(Problem(**CELLS[cell], **sizes, lengths=(600, 0, 290, 599)))


@pytest.mark.parametrize("size", [37, 520])
@pytest.mark.parametrize("cell", FLOAT32)
def test_a_row_alone_has_the_bits_that_it_has_among_others(cell, size):
    assert_row_alone(cell, None, size)


@pytest.mark.parametrize(("form", "cell"), REDUCED)
def test_so_it_has_with_quantized_weights(form, cell):
    assert_row_alone(cell, form, {"bfloat16": 740, "int8": 1040}[form])


def assert_row_alone(cell, precision, size):
    """Its tiles are others, and so they are where the weights are too many for a core's own caches."""
    problem = Problem(**CELLS[cell], input_size=5, hidden_size=size, seq_len=2, batch_size=2, dtype="float32")
    plan, (_, x, hx, cx) = rnnkit.prepare(problem.desc, problem.w, precision=precision), problem.inputs
    one_byte = {None: 4, "bfloat16": 2, "int8": 1}[precision]
    gates = problem.desc.num_recurrent_gates
    assert (size**2 * one_byte * gates > shapes.near_bytes(gates)) == (size > 37 and gates > 1)
    both = plan.infer(x, hx, cx)
    for n in range(2):
        own = slice(n, n + 1)
        alone = plan.infer(x[:, own], hx[:, own], None if cx is None else cx[:, own])
        assert_same_bits("y", alone.y, both.y[:, own])


@pytest.mark.parametrize(("cell", "dtype"), CASES)
def test_a_plan_keeps_its_weights(cell, dtype):
    """The plan holds a copy: later changes of the buffer do not reach it, and its results are their own memory."""
    problem = Problem(**CELLS[cell], dtype=dtype, num_layers=2)
    w = problem.w.copy()
    plan = rnnkit.prepare(problem.desc, w)
    first = plan.infer(*problem.inputs[1:])
    kept = problem.infer()
    w[:] = 0
    assert_same_results(plan.infer(*problem.inputs[1:]), kept, OUTPUTS)
    assert_same_results(first, kept, OUTPUTS)


@pytest.mark.parametrize(("cell", "dtype"), CASES)
def test_repeated_runs_give_the_same_bits(cell, dtype):
    problem = Problem(**CELLS[cell], **DROPPING, dtype=dtype, hidden_size=65, batch_size=7)
    first, second = problem.forward(), problem.forward()
    assert_same_results(first, second, OUTPUTS)
    assert_same_results(problem.backward(first.workspace), problem.backward(second.workspace), GRADIENTS)


@pytest.mark.parametrize("cell", FLOAT32)
def test_threads_may_share_a_workspace_and_a_plan(cell):
    """backward only reads its workspace, and infer its plan: eight calls at once give the bits of one."""
    problem = Problem(**CELLS[cell], **DROPPING, dtype="float32", hidden_size=33, seq_len=20, batch_size=7)
    outputs = problem.forward()
    plan = rnnkit.prepare(problem.desc, problem.w)
    gradients, inferred = problem.backward(outputs.workspace), problem.infer()
    with ThreadPoolExecutor(8) as pool:
        backs = [pool.submit(problem.backward, outputs.workspace) for _ in range(24)]
        runs = [pool.submit(plan.infer, *problem.inputs[1:]) for _ in range(24)]
    for back, run in zip(backs, runs, strict=True):
        assert_same_results(back.result(), gradients, GRADIENTS)
        assert_same_results(run.result(), inferred, OUTPUTS)


@pytest.mark.parametrize("cell", CELLS)
def test_the_seed_decides_the_dropout(cell):
    problem = Problem(**CELLS[cell], **DROPPING)
    result = problem.forward(seed=5)
    assert result.workspace.seed == 5
    assert_same_results(problem.forward(seed=5), result, OUTPUTS)
    assert not np.array_equal(problem.forward(seed=6).y, result.y)


def test_a_drawn_seed_is_kept():
    problem = Problem(mode="gru", **DROPPING)
    first, second = problem.forward(seed=None), problem.forward(seed=None)
    assert first.workspace.seed != second.workspace.seed
    assert not np.array_equal(first.y, second.y)
    assert_same_results(problem.forward(seed=first.workspace.seed), first, OUTPUTS)


@pytest.mark.parametrize("seed", [0, 2**32, 2**64 - 1])
def test_every_seed_is_its_own(seed):
    """No bits of the seed are cut off."""
    problem = Problem(mode="lstm", **DROPPING)
    assert problem.forward(seed=seed).workspace.seed == seed
    assert not np.array_equal(problem.forward(seed=seed).y, problem.forward(seed=seed ^ 2**40).y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_dropout_rate(rate, dtype):
    """Of n independent draws the dropped share stays within five standard deviations of the rate, layer by layer."""
    sizes = dict(hidden_size=50, seq_len=20, batch_size=10)
    problem = Problem(mode="lstm", num_layers=3, bidirectional=True, dropout=rate, dtype=dtype, **sizes)
    masks = dropout_masks(problem, seed=1)
    bound = 5 * np.sqrt(rate * (1 - rate) / masks[0].size)
    for mask in masks:
        assert abs((mask == 0).mean() - rate) < bound
        for axis in range(3):  # nor is one draw repeated along an axis
            others = tuple(other for other in range(3) if other != axis)
            assert np.diff(mask, axis=axis).any(axis=others).all()
    together = ((masks[0] == 0) & (masks[1] == 0)).mean()
    assert abs(together - rate**2) < bound, "the masks of two layers depend on each other"


@pytest.mark.parametrize("cell", FLOAT32)
def test_dropout_scales_what_it_keeps(cell):
    """The second layer runs on the first one's outputs, zeroed or times 1/(1 - p); the first layer knows of nothing."""
    problem = Problem(**CELLS[cell], num_layers=2, dropout=0.75, dtype="float32")
    result = problem.forward()
    lower = problem.twin(dropout=0.0).forward().workspace.hidden(0, 0)
    assert_same_bits("hidden(0, 0)", result.workspace.hidden(0, 0), lower)
    (mask,) = dropout_masks(problem, problem.seed)
    assert set(np.unique(mask)) == {0.0, 4.0}
    upper = Problem(**CELLS[cell], input_size=problem.output_size, dtype="float32")
    w = rnnkit.pack_weights(upper.desc, {name: problem.views[name[:-1] + "1"] for name in upper.views})
    cx = None if problem.cx is None else problem.cx[1:]
    expected = rnnkit.forward(upper.desc, w, lower * mask.astype("float32"), problem.hx[1:], cx)
    assert_close("y", result.y, expected.y, problem.dtype)


@pytest.mark.parametrize(("cell", "dtype"), CASES)
def test_dropout_of_everything(cell, dtype):
    """With p = 1 the upper layer sees zeros, so nothing below it has a gradient from above; no 0 * inf appears."""
    problem = Problem(**CELLS[cell], num_layers=2, dropout=1.0, dtype=dtype)
    result = problem.forward()
    other = problem.twin()
    other.x[:] += 1
    assert_same_bits("y", other.forward().y, result.y)
    back = rnnkit.backward(problem.desc, problem.w, result.workspace, problem.dy)
    assert np.isfinite(result.y).all()
    assert np.isfinite(back.dw).all()
    assert not back.dx.any()
    assert not rnnkit.weight_views(problem.desc, back.dw)["weight_ih_l1"].any()


@pytest.mark.parametrize("cell", CELLS)
def test_one_layer_has_nothing_to_drop(cell):
    problem = Problem(**CELLS[cell], bidirectional=True, dropout=0.5)
    assert_same_results(problem.forward(), problem.infer(), OUTPUTS)
