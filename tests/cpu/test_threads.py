"""The number of threads, and which of them does what, change no bit."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from combinations import nightly, pairs
from problems import CELLS, FLOAT32, Problem, step_loop
from tolerances import GRADIENTS, OUTPUTS, assert_same_results

from rnnkit.cpu import route, scheduler
from rnnkit_kernels.machine import sync, thread_pool

pytestmark = pytest.mark.cores(2)


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
    """All work is shared, every worker is waited for, and nothing right stands in new memory; the list of the calls.
    Of more threads than two all are used, too, and share out either rows or units.

    A worker comes as soon as it has a core: the caller's patience, a minute of its own core, ends on no machine that is
    merely busy.
    """
    soil(0xFF)
    monkeypatch.setattr(thread_pool, "WAKE_THRESHOLD", 0)
    monkeypatch.setattr(thread_pool, "SINGLE_THREAD_WORK", 0)
    run, run_together, seen = thread_pool.run, thread_pool._ThreadPool.run, []

    def watched(kernel, kind, work, *arguments):
        seen.append(Call(kernel.__name__, 1, (0, 0, 0), 0, 0, 0))
        run(kernel, kind, work, *arguments)

    def patient(self, code, work, arguments):
        before = self.sync.copy()
        run_together(self, code, thread_pool.WORK_PER_SPIN << 31, arguments)
        size = int(self.sync[sync.TICKET] % sync.TICKET_STEP - sync.CLOSED)
        passed = self.sync - before
        barriers = tuple(passed[sync.PASSED :: len(before) // sync.TEAMS].tolist())
        meetings = int(passed[sync.TAKEN + sync.BARRIER + sync.PASSED])
        taken = slice(sync.TAKEN, sync.TAKEN + size * sync.CACHE_LINE, sync.CACHE_LINE)
        claims = int((self.sync != before)[taken].sum())
        seen[-1] = Call(seen[-1].kernel, size, barriers, int(self.sync[sync.PROGRESS]), claims, meetings)

    monkeypatch.setattr(thread_pool, "run", watched)
    monkeypatch.setattr(thread_pool._ThreadPool, "run", patient)
    monkeypatch.setattr(scheduler, "best_sharing", all_threads)
    return seen


def all_threads(batch_size, weights, units, work, meetings, spread, threads, max_teams=None, itemsize=4):
    return scheduler.Sharing(threads if batch_size > 5 else 1, threads)


def assert_threads_change_no_bit(monkeypatch, problem, size, calls):
    """And all of them take part in every call but those that list rows; returns those that go through the steps."""
    results = []
    for threads in (1, size):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        calls.clear()
        forward = problem.forward()
        results.append((problem.infer(), forward, problem.backward(forward.workspace)))
        assert {call.size for call in calls if call.kernel not in ("list_rows", "cut_rows")} == {threads}
    for alone, together, names in zip(*results, (OUTPUTS, OUTPUTS, GRADIENTS), strict=True):
        assert_same_results(together, alone, names)
    passes = [call for call in calls if call.kernel in ("forward", "backward")]
    assert {call.kernel for call in passes} == {"forward", "backward"}
    return passes


def assert_split(call, size):
    """Each half of the threads went its own way: all met before the first step and behind the last alone."""
    assert call.barriers[0] <= 3
    if size > 2:
        assert min(call.barriers[1:]) > 0


def network(cell, **sizes):
    """A problem whose weights are enough for several panels."""
    return Problem(**CELLS[cell] | dict(input_size=33, hidden_size=65, dtype="float32") | sizes)


def projected(cell):
    """The size of a wide projection, of a cell that has one."""
    return {"proj_size": 50} if "proj_size" in CELLS[cell] else {}


def by_units(barriers, problem):
    """Threads that share the units of a step meet in every one, those with rows of their own a few times a call."""
    return barriers >= problem.seq_len


RAGGED = (20, 0, 7, 20, 13)
# Rows of the batch are shared where there are many, else the units of a step.
BATCHES = [(9, None), (12, None), (5, RAGGED)]


@pytest.mark.parametrize(("cell", "batch", "size"), pairs(FLOAT32, BATCHES, [2, 3, 4]))
def test_number_of_threads_changes_no_bit(monkeypatch, calls, cell, batch, size):
    """Also with more threads than cores."""
    batch_size, lengths = batch
    problem = network(cell, seq_len=20, batch_size=batch_size, lengths=lengths, num_layers=2, bidirectional=True)
    for call in assert_threads_change_no_bit(monkeypatch, problem, size, calls):
        if size == 3:
            assert by_units(call.barriers[0], problem) == (batch_size == 5)
            continue
        assert_split(call, size)
        if size == 4:
            assert {by_units(count, problem) for count in call.barriers[1:]} == {batch_size == 5}


# Four threads by default; of 8 to 16 on two cores most wait for one.
TEAMS = [(2, 4), nightly((2, 6)), nightly((3, 6)), nightly((4, 8))]


@pytest.mark.parametrize(("cell", "bidirectional", "sharing"), pairs(FLOAT32, [False, True], TEAMS, each=1))
def test_teams_with_rows_of_their_own_change_no_bit(monkeypatch, calls, cell, bidirectional, sharing):
    """Each a few threads, which share out the units."""
    teams, size = sharing[0], sharing[1] * (1 + bidirectional)
    monkeypatch.setattr(scheduler, "best_sharing", lambda *sizes, **_: scheduler.Sharing(teams, sizes[-1]))
    monkeypatch.setattr(scheduler, "_PIPELINED", (99, 8, 1.0))  # layers take their turns
    problem = network(cell, seq_len=20, batch_size=5, lengths=RAGGED, num_layers=2, bidirectional=bidirectional)
    for call in assert_threads_change_no_bit(monkeypatch, problem, size, calls):
        assert not by_units(call.barriers[0], problem)
        if bidirectional:
            assert_split(call, size)
        else:
            assert by_units(call.meetings, problem)


@pytest.mark.parametrize(("cell", "lengths", "size"), pairs(FLOAT32, [None, (24, 0, 7, 24, 13)], [2, 3, 4]))
def test_work_stealing_changes_no_bit(monkeypatch, calls, cell, lengths, size):
    """Threads that are done with their share of the units take over what others have not begun."""
    for constant, value in (("_UNIT_GRAIN", 16), ("_GRAIN_WORK", 0), ("CACHED_BYTES", -1)):
        monkeypatch.setattr(scheduler, constant, value)
    sizes = dict(seq_len=24, batch_size=5, lengths=lengths, num_layers=2, bidirectional=True)
    problem = network(cell, **sizes, **projected(cell))
    for call in assert_threads_change_no_bit(monkeypatch, problem, size, calls):
        assert by_units(call.barriers[0], problem)
        assert call.claims == size
    problem = problem.twin(bidirectional=False, lengths=None)
    assert_same_results(step_loop(problem), problem.infer(), OUTPUTS)


STREAMS = [(1, None), (5, None), (8, (64, 0, 35, 64, 17, 64, 63, 1))]


@pytest.mark.parametrize(
    ("cell", "batch", "layers_and_threads"), pairs(FLOAT32, STREAMS, [(2, 2), (2, 3), (2, 4), (5, 2)])
)
def test_pipelined_layers_change_no_bit(monkeypatch, calls, cell, batch, layers_and_threads):
    """Of two layers the upper one may begin while the lower one is still at work."""
    (batch_size, lengths), (layers, size) = batch, layers_and_threads
    monkeypatch.setattr(scheduler, "_PIPELINED", (6, 8, 1.0))
    monkeypatch.setattr(route, "_STEPWISE_WORK", 0)
    problem = network(cell, seq_len=64, batch_size=batch_size, num_layers=layers, lengths=lengths)
    passes = assert_threads_change_no_bit(monkeypatch, problem, size, calls)
    pipelined = [call for call in passes if call.progress == problem.seq_len]
    assert bool(pipelined) == (size % 2 == 0)
    for call in pipelined:
        assert_split(call, size)
    if pipelined:  # a layer that is left over has all the threads, in each of the three passes
        assert len(passes) - len(pipelined) == 3 * (layers % 2)


# A layer with 500 inputs takes longer than the one above it, one with a single input takes less.
UNEVEN = pairs(["tanh", "lstm-projected", nightly("gru-reset-before")], [5, 16], [2, 4], [1, 500])


@pytest.mark.parametrize(("cell", "batch_size", "size", "input_size"), UNEVEN)
def test_pipelined_layer_waits_for_every_step_that_it_needs(monkeypatch, calls, cell, batch_size, size, input_size):
    """Whichever of two pipelined layers is the slower one, with one step between them."""
    monkeypatch.setattr(scheduler, "_PIPELINED", (1, 1, 1.0))
    sizes = dict(input_size=input_size, seq_len=40, batch_size=batch_size, num_layers=2)
    passes = assert_threads_change_no_bit(monkeypatch, network(cell, **sizes, **projected(cell)), size, calls)
    assert {call.progress for call in passes} == {40}


def until(condition):
    deadline = time.monotonic() + 600  # seconds: only a hang takes that long
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


@pytest.mark.parametrize(("name", "barriers"), [("forward", 1), ("backward", 2)])
def test_step_is_reported_when_every_thread_is_done_with_it(monkeypatch, name, barriers):
    """To the layer behind, by one of two threads that share the rows of a step.

    One runs; the test plays the other, which comes to the barriers before the end of the first step, and then is late.
    """
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: 4)
    monkeypatch.setattr(scheduler, "_PIPELINED", (1, 1, 1.0))
    run, received = thread_pool.run, {}

    def watched(kernel, work, *arguments):
        received[kernel.__name__] = kernel, arguments
        run(kernel, work, *arguments)

    monkeypatch.setattr(thread_pool, "run", watched)
    problem = Problem(mode="rnn_tanh", num_layers=2, batch_size=16, dtype="float32")
    problem.backward(problem.forward().workspace)
    kernel, arguments = received[name]
    elements = np.zeros(sync.sync_size(4), np.int64)
    elements[[sync.NUMBER, sync.SPIN_LIMIT]] = 1, 1 << 40
    whole, half = 0, elements.size // sync.TEAMS
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(thread_pool._code_of(kernel, arguments), *arguments, 0, 4, elements)
        until(lambda: elements[sync.TICKET] > 0)
        elements[sync.TICKET] += 3

        def arrive(place):  # the first waits for the others, and changes nothing meanwhile
            elements[place + sync.ARRIVED] = 0
            elements[place + sync.PASSED] += 1

        if name == "forward":  # behind the weights and the initial states
            until(lambda: elements[whole + sync.ARRIVED] == 1)
            arrive(whole)
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
