"""Calls of one plan, whatever came before: brief ones, those that work in arrays that are kept, and long ones."""

import gc
import weakref

import numpy as np
import pytest
from problems import CELLS, Problem
from tolerances import OUTPUTS, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.cpu import infer
from rnnkit.kernels.machine import team

SIZES = dict(input_size=17, hidden_size=33)
BRIEF, KEPT, LONGER, LONG = (dict(seq_len=t, batch_size=n) for t, n in ((1, 1), (60, 5), (61, 5), (300, 20)))
STACKS = [{}, {"num_layers": 3}, {"num_layers": 2, "bidirectional": True}]


def call(plan, problem):
    _, *inputs = problem.inputs
    return plan.infer(*inputs, lengths=problem.lengths_array)


@pytest.fixture
def laid_out(monkeypatch):
    """The batches of the groups of layers that are laid out from now on."""
    planners = []
    ready_group = infer.ready_group

    def counted(runs, planner, schedule):
        planners.append(planner.steps)
        return ready_group(runs, planner, schedule)

    monkeypatch.setattr(infer, "ready_group", counted)
    return planners


@pytest.mark.parametrize("more", STACKS)
@pytest.mark.parametrize("cell", CELLS)
def test_calls_of_many_sizes(cell, more):
    """Each has the bits of a training forward."""
    first = Problem(**CELLS[cell], **SIZES, **more)
    plan, rng = rnnkit.prepare(first.desc, first.w), np.random.default_rng(0)
    sizes = [BRIEF, KEPT, LONGER, LONG, KEPT | {"lengths": (60, 0, 7, 60, 1)}, KEPT | {"states": False}]
    for seed, number in enumerate((1, 1, 2, 5, 1, *rng.integers(len(sizes), size=15))):
        problem = first.twin(**sizes[number], seed=seed)
        _, *inputs = problem.inputs
        expected = rnnkit.forward(first.desc, first.w, *inputs, lengths=problem.lengths_array)
        assert_same_results(call(plan, problem), expected, OUTPUTS)


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_calls_with_weights_of_fewer_bits(weights, monkeypatch):
    first = Problem(mode="lstm", **SIZES, num_layers=2, dtype="float32")
    plan = rnnkit.prepare(first.desc, first.w, weights=weights)
    problems = [first.twin(**size, seed=seed) for seed, size in enumerate((KEPT, KEPT, LONGER, LONG, KEPT))]
    found = [call(plan, problem) for problem in problems]
    monkeypatch.setattr(infer, "_KEPT_BYTES", -1)
    for problem, results in zip(problems, found, strict=True):
        assert_same_results(results, call(plan, problem), OUTPUTS)


@pytest.mark.parametrize("more", STACKS)
def test_a_size_that_comes_again_is_laid_out_once(more, laid_out):
    problem = Problem(mode="gru", **SIZES, **KEPT, **more)
    plan = rnnkit.prepare(problem.desc, problem.w)
    call(plan, problem)
    once = len(laid_out)
    assert once
    call(plan, problem.twin(seed=1))
    assert len(laid_out) == once
    call(plan, problem.twin(seq_len=61))
    assert len(laid_out) == 2 * once


@pytest.mark.parametrize("change", [LONG, {"lengths": (60, 0, 7, 60, 1)}])
def test_what_is_long_or_padded_is_laid_out_anew(change, laid_out):
    problem = Problem(mode="gru", **SIZES, **KEPT | change)
    plan = rnnkit.prepare(problem.desc, problem.w)
    call(plan, problem)
    once = len(laid_out)
    call(plan, problem)
    assert len(laid_out) == 2 * once


def test_another_number_of_threads_is_laid_out_anew(laid_out):
    problem = Problem(mode="lstm", **SIZES, **KEPT)
    plan = rnnkit.prepare(problem.desc, problem.w)
    with team.lent(1):
        expected = call(plan, problem)
    with team.lent(2):
        assert_same_results(call(plan, problem), expected, OUTPUTS)
    assert len(laid_out) == 2


def test_results_belong_to_the_caller():
    problem = Problem(mode="lstm", **SIZES, **KEPT, num_layers=2)
    plan = rnnkit.prepare(problem.desc, problem.w)
    found = call(plan, problem)
    copies = [array.copy() for array in found]
    for array in found:
        assert array.flags.writeable
    call(plan, problem.twin(seed=1))
    for name, array, copy in zip(OUTPUTS, found, copies, strict=True):
        assert_same_bits(name, array, copy)


def test_a_plan_keeps_no_input():
    problem = Problem(mode="lstm", **SIZES, **KEPT)
    plan, x = rnnkit.prepare(problem.desc, problem.w), problem.x.copy()
    plan.infer(x)
    given = weakref.ref(x)
    del x
    gc.collect()
    assert given() is None
