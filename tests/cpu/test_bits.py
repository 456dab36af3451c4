"""The bits of a row, of a plan and of calls in several threads, and dropout that is what its seed says."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from problems import CASES, CELLS, FLOAT32, REDUCED, Problem
from tolerances import GRADIENTS, OUTPUTS, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.call import steps
from rnnkit_kernels.machine import shapes

DROPPING = dict(num_layers=3, bidirectional=True, dropout=0.5)


@pytest.mark.parametrize("size", [37, 520])
@pytest.mark.parametrize("cell", FLOAT32)
def test_row_alone_has_the_bits_of_its_batch(cell, size):
    assert_row_alone(cell, None, size)


@pytest.mark.parametrize(("form", "cell"), REDUCED)
def test_quantized_row_alone_has_the_bits_of_its_batch(form, cell):
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
def test_plan_copies_its_weights(cell, dtype):
    """Its results are their own memory, too."""
    problem = Problem(**CELLS[cell], dtype=dtype, num_layers=2)
    w, expected = problem.w.copy(), problem.infer()
    plan = rnnkit.prepare(problem.desc, w)
    first = plan.infer(*problem.inputs[1:])
    w[:] = 0
    for found in (plan.infer(*problem.inputs[1:]), first):
        assert_same_results(found, expected, OUTPUTS)


@pytest.mark.parametrize("checkpoint_steps", [None, 4])
@pytest.mark.parametrize("cell", FLOAT32)
def test_threads_may_share_a_workspace_and_a_plan(monkeypatch, cell, checkpoint_steps):
    """backward only reads its workspace, and infer its plan: eight calls at once give the bits of one. With checkpoints
    all calls but one take memory of their own."""
    monkeypatch.setattr(steps, "_GRADIENT_BYTES", 128)  # of several segments
    problem = Problem(**CELLS[cell], **DROPPING, dtype="float32", hidden_size=33, seq_len=20, batch_size=7)
    outputs = problem.forward(checkpoint_steps=checkpoint_steps)
    plan = rnnkit.prepare(problem.desc, problem.w)
    gradients, inferred = problem.backward(outputs.workspace), problem.infer()
    with ThreadPoolExecutor(8) as pool:
        backs = [pool.submit(problem.backward, outputs.workspace) for _ in range(24)]
        runs = [pool.submit(plan.infer, *problem.inputs[1:]) for _ in range(24)]
    for back, run in zip(backs, runs, strict=True):
        assert_same_results(back.result(), gradients, GRADIENTS)
        assert_same_results(run.result(), inferred, OUTPUTS)


def test_drawn_seed_repeats_the_run():
    problem = Problem(mode="gru", **DROPPING)
    first, second = problem.forward(seed=None), problem.forward(seed=None)
    assert first.workspace.seed != second.workspace.seed
    assert not np.array_equal(first.y, second.y)
    assert_same_results(problem.forward(seed=first.workspace.seed), first, OUTPUTS)


@pytest.mark.parametrize(("cell", "dtype"), CASES)
def test_full_dropout_cuts_the_layers_apart(cell, dtype):
    """With p = 1 the upper layer sees zeros, so nothing below it has a gradient from above; no 0 * inf appears."""
    problem = Problem(**CELLS[cell], num_layers=2, dropout=1.0, dtype=dtype)
    result, other = problem.forward(), problem.twin()
    other.x[:] += 1
    assert_same_bits("y", other.forward().y, result.y)
    back = rnnkit.backward(problem.desc, problem.w, result.workspace, problem.dy)
    assert np.isfinite(result.y).all() and np.isfinite(back.dw).all()
    assert not back.dx.any() and not rnnkit.weight_views(problem.desc, back.dw)["weight_ih_l1"].any()


@pytest.mark.parametrize("cell", CELLS)
def test_one_layer_ignores_dropout(cell):
    problem = Problem(**CELLS[cell], bidirectional=True, dropout=0.5)
    assert_same_results(problem.forward(), problem.infer(), OUTPUTS)
