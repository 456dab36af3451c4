"""Calls of one plan, whatever came before: brief ones, those that work in arrays that are kept, and long ones."""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from combinations import nightly, pairs
from messages import raises
from problems import CELLS, FLOAT32, Problem
from tolerances import OUTPUTS, assert_same_results
from traced import traced_bytes

import rnnkit
from rnnkit.cpu import infer, route, stack
from rnnkit.network.changing import ChangingPlan
from rnnkit_kernels.machine import thread_pool

SIZES = dict(input_size=17, hidden_size=33, dtype="float32")
BRIEF, KEPT, LONGER, LONG = (dict(seq_len=t, batch_size=n) for t, n in ((1, 1), (60, 5), (61, 5), (400, 20)))
STACKS = [{}, {"num_layers": 5}, {"num_layers": 3, "bidirectional": True}]


def call(plan, problem):
    return plan.infer(*problem.inputs[1:], lengths=problem.lengths_array)


def planned(**options):
    """A problem and a plan of its network."""
    problem = Problem(**{"mode": "lstm"} | SIZES | options)
    return problem, rnnkit.prepare(problem.desc, problem.w)


@pytest.fixture(autouse=True)
def _few_calls_are_brief(monkeypatch):
    """The sizes above are brief, kept or long."""
    monkeypatch.setattr(route, "_STEPWISE_WORK", 1 << 19)


@pytest.fixture
def laid_out(monkeypatch):
    """The batches of the groups of layers that are laid out from now on."""
    batches, ready_group = [], infer.prepare_group

    def counted(runs, scheduler, *others):
        batches.append(scheduler.steps)
        return ready_group(runs, scheduler, *others)

    monkeypatch.setattr(infer, "prepare_group", counted)
    return batches


@pytest.mark.parametrize(("cell", "more"), pairs(FLOAT32, STACKS, each=1))
def test_calls_of_many_sizes_are_bit_identical_to_forward(cell, more):
    first, plan = planned(**CELLS[cell], **more)
    rng = np.random.default_rng(0)
    sizes = [BRIEF, KEPT, LONGER, LONG, KEPT | {"lengths": (60, 0, 7, 60, 1)}, KEPT | {"states": False}]
    for seed, number in enumerate((1, 1, 1, 2, 2, 5, 1, 1, *rng.integers(len(sizes), size=15).repeat(2))):
        problem = first.twin(**sizes[number], seed=seed)
        expected = rnnkit.forward(first.desc, first.w, *problem.inputs[1:], lengths=problem.lengths_array)
        assert_same_results(call(plan, problem), expected, OUTPUTS)


@pytest.mark.parametrize("precision", [nightly("bfloat16"), "int8"])
def test_quantized_calls_do_not_depend_on_kept_arrays(precision, monkeypatch):
    first = Problem(mode="lstm", **SIZES, num_layers=2)
    plan = rnnkit.prepare(first.desc, first.w, precision=precision)
    problems = [first.twin(**size, seed=seed) for seed, size in enumerate((KEPT, KEPT, KEPT, LONGER, LONGER, LONG))]
    found = [call(plan, problem) for problem in problems]
    monkeypatch.setattr(infer, "_KEPT_BYTES", -1)
    for problem, results in zip(problems, found, strict=True):
        assert_same_results(results, call(plan, problem), OUTPUTS)


@pytest.mark.parametrize("more", STACKS)
def test_repeated_size_is_laid_out_once(more, laid_out):
    """In the second call: copying y takes longer than is gained before. Long calls are laid out each time."""
    problem, plan = planned(mode="gru", **KEPT, **more)
    counts = [0]
    for seed, size in enumerate([KEPT] * 4 + [LONGER] * 2 + [LONG] * 2):
        call(plan, problem.twin(**size, seed=seed))
        counts.append(len(laid_out))
    *made, long, again = np.diff(counts).tolist()
    assert made[0] and made == [made[0] * times for times in (1, 1, 0, 0, 1, 1)] and long == again > 0


def held_by_a_plan(num_layers):
    """Bytes, after calls of one size."""
    problem, plan = planned(**KEPT, num_layers=num_layers, bidirectional=True)
    problem.infer()

    def calls():
        for _ in range(3):
            call(plan, problem)

    return traced_bytes(calls)[0]


def test_deep_plan_keeps_no_more_than_a_small_one():
    """But for what it tells the kernels; of what layers put out it keeps three."""
    assert held_by_a_plan(12) < 1.5 * held_by_a_plan(4)


def test_batches_of_other_lengths_are_laid_out_once(laid_out):
    problem, plan = planned(**KEPT, lengths=(60, 0, 7, 60, 1))
    for seed, lengths in enumerate([(60, 0, 7, 60, 1), (1, 2, 3, 4, 5), (0, 60, 60, 60, 60), (2, 2, 2, 2, 2)]):
        other = problem.twin(lengths=lengths, seed=seed)
        expected = rnnkit.forward(problem.desc, problem.w, *other.inputs[1:], lengths=lengths)
        before = len(laid_out)
        assert_same_results(call(plan, other), expected, OUTPUTS)
        assert len(laid_out) - before == (seed < 2)


def test_calls_of_other_numbers_of_threads_are_laid_out_anew(laid_out):
    problem, plan = planned(**KEPT)
    with thread_pool.thread_override(1):
        expected = [call(plan, problem) for _ in range(2)]
    with thread_pool.thread_override(2):
        assert_same_results(call(plan, problem), expected[1], OUTPUTS)
    assert len(laid_out) == 3


def test_results_belong_to_the_caller():
    problem, plan = planned(**KEPT, num_layers=2)
    call(plan, problem)
    found = call(plan, problem)
    before = type(found)(*(array.copy() for array in found))
    assert all(array.flags.writeable for array in found)
    call(plan, problem.twin(seed=1))
    assert_same_results(found, before, OUTPUTS)


def test_changing_plan_has_its_new_weights_and_checks_its_arguments():
    desc, x = rnnkit.RNNDescriptor("gru", 3, 4), np.random.default_rng(0).normal(size=(5, 3)).astype("f4")
    first, second = (rnnkit.init_weights(desc, seed) for seed in (0, 1))
    plan = ChangingPlan(desc, first)
    for w in (first, second):
        plan.repack(w)
        assert_same_results(plan.step(x), rnnkit.prepare(desc, w).step(x), OUTPUTS)
        assert_same_results(plan.infer(x[None]), rnnkit.infer(desc, w, x[None]), OUTPUTS)
    with raises(ValueError, "repack: w | num_weights=108 | (107,)"):
        plan.repack(first[1:])
    with raises(TypeError, "repack: w | float32 | float64"):
        plan.repack(first.astype("float64"))
    with raises(ValueError, "step: x | input_size=3 | (5, 2)"):
        plan.step(x[:, :2].copy())
    with pytest.raises(TypeError, match="ChangingPlan cannot be copied or pickled"):
        copy.deepcopy(plan)
    with raises(ValueError, "prepare: w | num_weights=108 | (3,)"):
        ChangingPlan(desc, first[:3])


def test_plan_keeps_no_long_lists(laid_out):
    problem, plan = planned(**LONG, lengths=(300, 0, 7, 60, 1) * 4)
    call(plan, problem)
    steps = weakref.ref(laid_out.pop())
    gc.collect()
    assert steps() is None


def test_plan_keeps_no_input():
    problem, plan = planned(**KEPT)
    x = problem.x.copy()
    for _ in range(3):
        plan.infer(x)
    given = weakref.ref(x)
    del x
    gc.collect()
    assert given() is None


@pytest.mark.parametrize("precision", [None, "int8"])
def test_steps_of_many_sizes_equal_those_of_new_plans(precision):
    """Though a plan works where its last step did."""
    first = Problem(mode="lstm", **SIZES, num_layers=2)
    plan = rnnkit.prepare(first.desc, first.w, precision=precision)
    for seed, rows in enumerate((1, 1, 17, 2, 17, 17, 1, 300, 3)):
        problem = first.twin(seq_len=1, batch_size=rows, seed=seed)
        arrays = problem.x[0], problem.hx, problem.cx
        expected = rnnkit.prepare(first.desc, first.w, precision=precision).step(*arrays)
        assert_same_results(plan.step(*arrays), expected, OUTPUTS)


@pytest.mark.parametrize("precision", [None, "int8"])
def test_plan_keeps_no_scratch_for_many_rows(precision, monkeypatch):
    """Nor does it keep much for a few rows where many threads would have scratch of their own."""
    monkeypatch.setattr(thread_pool, "max_threads", lambda: 64)
    rows, sizes = (2000, SIZES) if precision is None else (1, SIZES | {"input_size": 2**15, "hidden_size": 64})
    problem = Problem(mode="lstm", **sizes, seq_len=1, batch_size=rows)
    plan, again = (rnnkit.prepare(problem.desc, problem.w, precision=precision) for _ in range(2))
    again.step(problem.x[0], None)  # compiled
    after, peak = traced_bytes(lambda: plan.step(problem.x[0], None))
    assert peak > stack.KEPT_BYTES // 4 > 4 * after


def test_plan_keeps_scratch_of_few_sizes():
    problem, plan = planned(seq_len=1, batch_size=1)
    x = np.zeros((100, problem.input_size), problem.dtype)
    plan.step(x[:1], None)
    after, _ = traced_bytes(lambda: [plan.step(x[:rows], None) for rows in range(1, 60)])
    assert after < 59 * problem.hidden_size * 4 * x.itemsize * 8


def test_threads_step_one_plan_at_once():
    first, plan = planned(input_size=64, hidden_size=64, seq_len=1, batch_size=16)
    problems = [first.twin(seed=seed) for seed in range(8)]
    alone = [plan.step(one.x[0], one.hx, one.cx) for one in problems]

    def steps(one):
        return [plan.step(one.x[0], one.hx, one.cx) for _ in range(200)]

    with ThreadPoolExecutor(8) as pool:
        for found, expected in zip(pool.map(steps, problems), alone, strict=True):
            for one in found:
                assert_same_results(one, expected, OUTPUTS)
