"""Equal calls give equal bits, every way of running forward gives the same, and dropout is what its seed says."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from problems import CELLS, Problem, dropout_masks, step_loop
from strategies import problems, wide_problems
from tolerances import GRADIENTS, OUTPUTS, assert_close, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.cpu import planner
from rnnkit.kernels.machine import sync, team, tile

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


@pytest.mark.parametrize("cell", CELLS)
def test_a_long_inference_gives_the_same_bits(cell):
    """Inference may go through a long input in chunks of steps."""
    assert_one_forward(Problem(**CELLS[cell], dtype="float32", seq_len=700, batch_size=2, num_layers=2))
    assert_one_forward(Problem(**CELLS[cell], dtype="float32", seq_len=700, batch_size=2, bidirectional=True))


@pytest.mark.parametrize("cell", CELLS)
def test_a_long_inference_knows_the_lengths_in_every_chunk(cell):
    """Stacked layers go through a long input a few hundred steps at a time."""
    sizes = dict(hidden_size=256, seq_len=600, batch_size=4, num_layers=2, dtype="float32")
    assert_one_forward(Problem(**CELLS[cell], **sizes, lengths=(600, 0, 290, 599)))


@pytest.mark.parametrize(("weights", "size"), [(None, 37), (None, 520), ("bfloat16", 740), ("int8", 1040)])
@pytest.mark.parametrize("cell", CELLS)
def test_a_row_alone_has_the_bits_that_it_has_among_others(cell, weights, size):
    """Its tiles are others, and so they are where the weights are too many for a core's own caches."""
    problem = Problem(**CELLS[cell], input_size=5, hidden_size=size, seq_len=2, batch_size=2, dtype="float32")
    plan, (_, x, hx, cx) = rnnkit.prepare(problem.desc, problem.w, weights=weights), problem.inputs
    one_byte = {None: 4, "bfloat16": 2, "int8": 1}[weights]
    gates = problem.desc.num_recurrent_gates
    assert (size**2 * one_byte * gates > tile.near_bytes(gates)) == (size > 37 and gates > 1)
    both = plan.infer(x, hx, cx)
    for n in range(2):
        own = slice(n, n + 1)
        alone = plan.infer(x[:, own], hx[:, own], None if cx is None else cx[:, own])
        assert_same_bits("y", alone.y, both.y[:, own])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cell", CELLS)
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cell", CELLS)
def test_repeated_runs_give_the_same_bits(cell, dtype):
    problem = Problem(**CELLS[cell], **DROPPING, dtype=dtype, hidden_size=65, batch_size=7)
    first, second = problem.forward(), problem.forward()
    assert_same_results(first, second, OUTPUTS)
    assert_same_results(problem.backward(first.workspace), problem.backward(second.workspace), GRADIENTS)


class Call(NamedTuple):
    """What a call of a kernel left behind in the team's `sync`."""

    kernel: str
    size: int  # threads that took part
    barriers: tuple[int, int, int]  # of the whole team, and of the two that it may split into
    progress: int  # up to where the first of these said that it had come
    claims: int  # threads of whose share of the work blocks were taken
    meetings: int  # barriers of the first team that shares rows


@pytest.fixture
def calls(monkeypatch, soil):
    """All work is shared, every helper is waited for, and nothing right stands in new memory; the list of the calls.
    Of more threads than two all are used, too, and share out either rows or units.

    A helper comes as soon as it has a core: the caller's patience, a minute of its own core, ends on no machine that is
    merely busy.
    """
    soil(0xFF)
    monkeypatch.setattr(team, "_SMALL_WORK", 0)
    monkeypatch.setattr(team, "_BRIEF_WORK", 0)
    run, run_together, seen = team.run, team._Team.run, []

    def watched(kernel, kind, work, *arguments):
        seen.append(Call(kernel.__name__, 1, (0, 0, 0), 0, 0, 0))
        run(kernel, kind, work, *arguments)

    def patient(self, code, work, arguments):
        before = self.sync.copy()
        run_together(self, code, team.WORK_PER_SPIN << 31, arguments)
        size = int(self.sync[sync.GATE] % sync.GATE_STEP - sync.CLOSED)
        passed = self.sync - before
        barriers = tuple(passed[sync.PASSED :: len(before) // sync.TEAMS].tolist())
        meetings = int(passed[sync.TAKEN + sync.MEETING + sync.PASSED])
        taken = slice(sync.TAKEN, sync.TAKEN + size * sync.CACHE_LINE, sync.CACHE_LINE)
        claims = int((self.sync != before)[taken].sum())
        seen[-1] = Call(seen[-1].kernel, size, barriers, int(self.sync[sync.PROGRESS]), claims, meetings)

    monkeypatch.setattr(team, "run", watched)
    monkeypatch.setattr(team._Team, "run", patient)
    monkeypatch.setattr(planner, "best_sharing", all_threads)
    return seen


def all_threads(batch_size, weights, units, work, meetings, spread, threads, most_teams=None):
    by_rows = planner.shares_rows(batch_size, weights, threads)
    return planner.Sharing(threads if by_rows else 1, threads)


def assert_threads_change_no_bit(monkeypatch, problem, size, calls):
    """And all of them take part in every call but those that list rows; returns those that go through the steps."""
    results = []
    for threads in (1, size):
        monkeypatch.setattr(team, "wanted_size", lambda threads=threads: threads)
        calls.clear()
        forward = problem.forward()
        results.append((problem.infer(), forward, problem.backward(forward.workspace)))
        assert {call.size for call in calls if call.kernel != "list_rows"} == {threads}
    for alone, together, names in zip(*results, (OUTPUTS, OUTPUTS, GRADIENTS), strict=True):
        assert_same_results(together, alone, names)
    passes = [call for call in calls if call.kernel in ("forward", "backward")]
    assert {call.kernel for call in passes} == {"forward", "backward"}
    return passes


def assert_split(call, size):
    """Each half of the threads went its own way: all met at the end alone, and each half by itself if it is several."""
    assert call.barriers[0] <= 2
    if size > 2:
        assert min(call.barriers[1:]) > 0


def by_units(barriers, problem):
    """Threads that share the units of a step meet in every one, those with rows of their own a few times a call."""
    return barriers >= problem.seq_len


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(("batch_size", "lengths"), [(9, None), (12, None), (5, (20, 0, 7, 20, 13))])
@pytest.mark.parametrize("cell", CELLS)
def test_the_number_of_threads_changes_no_bit(monkeypatch, calls, cell, batch_size, lengths, size):
    """Also with more threads than cores; rows of the batch are shared where they come out even, else the units."""
    sizes = dict(input_size=33, hidden_size=65, seq_len=20, dtype="float32")
    problem = Problem(**CELLS[cell], **sizes, batch_size=batch_size, lengths=lengths, num_layers=2, bidirectional=True)
    passes = assert_threads_change_no_bit(monkeypatch, problem, size, calls)
    for call in passes:
        if size == 3:
            assert by_units(call.barriers[0], problem) == (batch_size == 5)
            continue
        assert_split(call, size)
        if size == 4:
            assert {by_units(count, problem) for count in call.barriers[1:]} == {batch_size == 5}


@pytest.mark.parametrize(("teams", "size"), [(2, 4), (2, 6), (3, 6), (4, 8)])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_teams_with_rows_of_their_own_change_no_bit(monkeypatch, calls, cell, bidirectional, teams, size):
    """Each a few threads, which share out the units."""
    monkeypatch.setattr(planner, "best_sharing", lambda *sizes, **_: planner.Sharing(teams, sizes[-1]))
    sizes = dict(input_size=33, hidden_size=65, seq_len=20, batch_size=5, dtype="float32", num_layers=2)
    problem = Problem(**CELLS[cell], **sizes, lengths=(20, 0, 7, 20, 13), bidirectional=bidirectional)
    directions = 1 + bidirectional
    passes = assert_threads_change_no_bit(monkeypatch, problem, size * directions, calls)
    for call in passes:
        assert not by_units(call.barriers[0], problem)
        if not bidirectional:
            assert by_units(call.meetings, problem)
        else:
            assert_split(call, size * directions)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("lengths", [None, (24, 0, 7, 24, 13)])
@pytest.mark.parametrize("cell", CELLS)
def test_whoever_does_a_block_changes_no_bit(monkeypatch, calls, cell, lengths, size):
    """Threads that are done with their share of the units take over what others have not begun."""
    for constant, value in (("_GRAIN", 16), ("_GRAIN_WORK", 0), ("_CACHED_BYTES", -1)):
        monkeypatch.setattr(planner, constant, value)
    sizes = dict(input_size=33, hidden_size=65, seq_len=24, batch_size=5, dtype="float32")
    cell = CELLS[cell] | ({"proj_size": 50} if "proj_size" in CELLS[cell] else {})
    problem = Problem(**cell, **sizes, lengths=lengths, num_layers=2, bidirectional=True)
    for call in assert_threads_change_no_bit(monkeypatch, problem, size, calls):
        assert by_units(call.barriers[0], problem)
        assert call.claims == size
    problem = problem.twin(bidirectional=False, lengths=None)
    assert_same_results(step_loop(problem), problem.infer(), OUTPUTS)


@pytest.mark.parametrize(("layers", "size"), [(2, 2), (2, 3), (2, 4), (5, 2)])
@pytest.mark.parametrize(("batch_size", "lengths"), [(1, None), (5, None), (8, (64, 0, 35, 64, 17, 64, 63, 1))])
@pytest.mark.parametrize("cell", CELLS)
def test_pipelined_layers_change_no_bit(monkeypatch, calls, cell, batch_size, lengths, layers, size):
    """Of two layers the upper one may begin while the lower one is still at work."""
    monkeypatch.setattr(planner, "_PIPELINED_BY_UNITS", (6, 8, 1.0))
    monkeypatch.setattr(planner, "_PIPELINED_BY_ROWS", (6, 16, 1.0))
    sizes = dict(input_size=33, hidden_size=65, seq_len=64, batch_size=batch_size, num_layers=layers, dtype="float32")
    problem = Problem(**CELLS[cell], **sizes, lengths=lengths)
    passes = assert_threads_change_no_bit(monkeypatch, problem, size, calls)
    pipelined = [call for call in passes if call.progress == problem.seq_len]
    assert bool(pipelined) == (size % 2 == 0)
    for call in pipelined:
        assert_split(call, size)
    if pipelined:  # a layer that is left over has all the threads, in each of the three passes
        assert len(passes) - len(pipelined) == 3 * (layers % 2)


# A layer with 500 inputs takes longer than the one above it, one with a single input takes less.
@pytest.mark.parametrize("input_size", [1, 500])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("batch_size", [5, 16])
@pytest.mark.parametrize("cell", ["tanh", "lstm-projected", "gru-reset-before"])
def test_a_layer_waits_for_every_step_that_it_needs(monkeypatch, calls, cell, batch_size, size, input_size):
    """Whichever of two pipelined layers is the slower one, with one step between them."""
    monkeypatch.setattr(planner, "_PIPELINED_BY_UNITS", (1, 1, 1.0))
    monkeypatch.setattr(planner, "_PIPELINED_BY_ROWS", (1, 1, 1.0))
    sizes = dict(input_size=input_size, hidden_size=65, seq_len=40, batch_size=batch_size, num_layers=2)
    problem = Problem(**CELLS[cell] | ({"proj_size": 50} if "proj_size" in CELLS[cell] else {}), **sizes)
    passes = assert_threads_change_no_bit(monkeypatch, problem.twin(dtype="float32"), size, calls)
    assert {call.progress for call in passes} == {problem.seq_len}


def until(condition):
    deadline = time.monotonic() + 600  # seconds: only a hang takes that long
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


@pytest.mark.parametrize(("name", "barriers"), [("forward", 1), ("backward", 2)])
def test_a_step_is_reported_when_every_thread_is_done_with_it(monkeypatch, name, barriers):
    """To the layer behind, by one of two threads that share the rows of a step.

    One runs; the test plays the other, which comes to the barriers before the end of the first step, and then is late.
    """
    monkeypatch.setattr(team, "wanted_size", lambda: 4)
    monkeypatch.setattr(planner, "_PIPELINED_BY_ROWS", (1, 1, 1.0))
    run, received = team.run, {}

    def watched(kernel, kind, work, *arguments):
        received[kernel.__name__] = kernel, kind, arguments
        run(kernel, kind, work, *arguments)

    monkeypatch.setattr(team, "run", watched)
    problem = Problem(mode="rnn_tanh", num_layers=2, batch_size=16, dtype="float32")
    problem.backward(problem.forward().workspace)
    kernel, kind, arguments = received[name]
    elements = np.zeros(sync.sync_size(4), np.int64)
    elements[[sync.NUMBER, sync.SPIN_LIMIT]] = 1, 1 << 40
    whole, half = 0, elements.size // sync.TEAMS
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(team._code[kernel, kind], *arguments, 0, 4, elements)
        until(lambda: elements[sync.GATE] > 0)
        elements[sync.GATE] += 3

        def arrive(place):  # the first waits for the others, and changes nothing meanwhile
            elements[place + sync.ARRIVED] = 0
            elements[place + sync.PASSED] += 1

        for _ in range(barriers):
            until(lambda: elements[half + sync.ARRIVED] == 1)
            arrive(half)
        until(lambda: elements[half + sync.ARRIVED] == 1)
        reported = int(elements[sync.PROGRESS])
        while not running.done():  # from here on nobody is late
            for place in (half, whole):
                if elements[place + sync.ARRIVED] == 1:
                    arrive(place)
    assert running.result() is None
    assert (reported, elements[sync.PROGRESS]) == (0, problem.seq_len)


@pytest.mark.parametrize("cell", CELLS)
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


@pytest.mark.parametrize("cell", CELLS)
def test_dropout_scales_what_it_keeps(cell):
    """The second layer runs on the first one's outputs, zeroed or times 1/(1 - p); the first layer knows of nothing."""
    problem = Problem(**CELLS[cell], num_layers=2, dropout=0.75)
    result = problem.forward()
    lower = problem.twin(dropout=0.0).forward().workspace.hidden(0, 0)
    assert_same_bits("hidden(0, 0)", result.workspace.hidden(0, 0), lower)
    (mask,) = dropout_masks(problem, problem.seed)
    assert set(np.unique(mask)) == {0.0, 4.0}
    upper = Problem(**CELLS[cell], input_size=problem.output_size)
    w = rnnkit.pack_weights(upper.desc, {name: problem.views[name[:-1] + "1"] for name in upper.views})
    cx = None if problem.cx is None else problem.cx[1:]
    expected = rnnkit.forward(upper.desc, w, lower * mask, problem.hx[1:], cx)
    assert_close("y", result.y, expected.y, problem.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cell", CELLS)
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
