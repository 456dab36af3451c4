"""How the work is shared out among more threads than two: teams that have rows of the batch and share out the units."""

import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compiled import for_python
from hypothesis import given
from hypothesis import strategies as st

import rnnkit
from rnnkit.cpu import scheduler
from rnnkit.cpu.layer import layers_of
from rnnkit.cpu.rows import StepRows, same_length
from rnnkit.cpu.scheduler import Scheduler, Sharing, best_sharing, threads_of_step
from rnnkit_kernels.loop import usable_threads
from rnnkit_kernels.machine import sync, thread_pool
from rnnkit_kernels.machine.registers import VECTOR_BYTES
from rnnkit_kernels.operands import Schedule

MUCH, LITTLE = 10**13, 5 * 10**6
LANES = VECTOR_BYTES // 4


def sharing(hidden_size, batch_size, threads, itemsize=4, **options):
    """Of an LSTM, forward."""
    layer = layers_of(rnnkit.RNNDescriptor("lstm", hidden_size, hidden_size))[0]
    work = layer.step_work, layer.barriers, layer.input_work
    sizes = layer.recurrent_weights * itemsize, hidden_size * itemsize, *work
    return best_sharing(batch_size, *sizes, threads, itemsize=itemsize, **options)


# Hidden size, batch size, teams. Of one row weights are read from the first cache, of two from most of the second, of
# three from that; of six from anywhere. Rows of float64 come out even.
FLOAT32 = """16 1 1, 16 2 2, 32 2 2, 64 2 1, 64 3 2, 192 2 1, 192 3 2, 208 3 1, 208 5 1, 208 6 2, 256 7 2, 272 7 1,
             272 11 2, 450 10 1, 450 11 2, 450 12 2, 450 13 1, 456 12 1"""
FLOAT64 = "32 2 2, 64 2 1, 64 3 1, 64 4 2, 64 5 1, 96 4 1, 128 6 2, 128 7 1, 128 9 2, 320 12 1"


def rows_of(table, *more):
    return [(*map(int, row.split()), *more) for row in table.split(",")]


@pytest.mark.parametrize(("hidden_size", "batch_size", "teams", "itemsize"), rows_of(FLOAT32, 4) + rows_of(FLOAT64, 8))
def test_two_threads_share_rows_where_weights_are_near(hidden_size, batch_size, teams, itemsize):
    assert sharing(hidden_size, batch_size, 2, itemsize=itemsize) == Sharing(teams, 2)
    assert sharing(hidden_size, batch_size, 1, itemsize=itemsize) == Sharing(1, 1)


@pytest.mark.parametrize("threads", [3, 4, 7, 16, 64])
@pytest.mark.parametrize("batch_size", [1, 3, 20, 64])
@pytest.mark.parametrize("hidden_size", [1, 17, 256, 800])
def test_division_leaves_every_thread_some_work(hidden_size, batch_size, threads):
    found = sharing(hidden_size, batch_size, threads)
    size, rest = divmod(found.threads, found.teams)
    assert rest == 0 and 1 <= found.teams <= batch_size and found.threads <= threads
    assert size <= max(-(-hidden_size // LANES), 2)


def test_more_threads_than_pay_are_left_out():
    """A step of one row of 256 units, 5 us on one thread, ends with a barrier, which takes longer with each thread.

    One of 128 units, 1 us, is done no sooner by eight than by four.
    """
    assert all(4 <= sharing(256, 1, threads).threads <= 8 for threads in (16, 64, 256))
    assert sharing(128, 1, 8) == Sharing(1, 4)
    assert sharing(16, 1, 64).threads == 2 and sharing(800, 20, 64).threads > 32
    assert all(sharing(512, 64, threads, max_teams=1).teams == 1 for threads in (16, 64))


# Hidden size, batch size, threads, teams, threads of a team. The first are what docs/explanation/performance.md says of
# ds2, lm and stream, where it is the same with registers of any width. Then a team of more than eight threads waits for
# cache lines from cores that are far. Of the last a little more for a barrier, or for a line of hidden states, decides.
BEST = """800 20 8 2 4, 800 20 16 2 8, 512 64 8 4 2, 512 64 16 4 4, 512 64 64 16 4, 256 1 8 1 8, 256 1 16 1 8,
          256 1 64 1 8, 450 12 64 7 8, 450 12 32 4 8, 64 3 4 2 2, 32 16 8 8 1, 128 16 64 15 4"""


@pytest.mark.parametrize(("hidden_size", "batch_size", "threads", "teams", "size"), rows_of(BEST))
def test_model_finds_the_best_division(hidden_size, batch_size, threads, teams, size):
    assert sharing(hidden_size, batch_size, threads) == Sharing(teams, teams * size)


# Input size, hidden size, steps, batch size, and whether.
PIPELINED = """64 64 6 8 1, 64 64 5 8 0, 64 64 11 4 0, 64 64 12 4 1, 64 64 12 7 1,
               4 64 99 8 1, 1 64 99 8 0, 256 256 99 8 1, 272 272 99 8 0"""


@pytest.mark.parametrize(("input_size", "hidden_size", "seq_len", "batch_size", "split"), rows_of(PIPELINED))
def test_two_layers_are_pipelined_where_it_pays(input_size, hidden_size, seq_len, batch_size, split):
    """Those with enough steps, as much work, and weights that stay near; however rows or units were shared out."""
    group = layers_of(rnnkit.RNNDescriptor("lstm", input_size, hidden_size, num_layers=2))
    assert Scheduler(same_length(seq_len, batch_size), 4, 2).forward(group, keeps_gates=True).split == bool(split)


def test_step_of_all_layers_has_one_team():
    layers = layers_of(rnnkit.RNNDescriptor("gru", 1024, 1024, 3))
    found = threads_of_step(1, layers, 4)
    sizes = 1, 12 << 20, 4096, layers[0].input_work + layers[0].step_work, 1, 0
    assert found == best_sharing(*sizes, 1024, max_teams=1).threads
    assert 8 <= found <= 64


class Sleeper:
    def __init__(self):
        self.asleep = True

    def ring(self):
        self.asleep = False


def test_only_as_many_workers_wake_as_pay():
    """And those that are awake anyway count."""
    idle = object.__new__(thread_pool._ThreadPool)
    idle.workers = [Sleeper() for _ in range(7)]
    assert idle.wake(LITTLE) == math.isqrt(LITTLE // thread_pool._WAKING_WORK) == 4
    assert [worker.asleep for worker in idle.workers] == [False] * 4 + [True] * 3
    assert idle.wake(LITTLE) == idle.wake(1) == 4
    idle.called = 0.0
    assert idle.is_awake(LITTLE) and not idle.is_awake(MUCH)
    assert idle.wake(MUCH) == 7 and not any(worker.asleep for worker in idle.workers)


@pytest.mark.cores(2)
def test_call_runs_on_the_threads_of_its_schedule(every_worker_comes, monkeypatch):
    """Of eight workers as many come in as the scheduler says, to the same bits."""
    net = rnnkit.LSTM(64, 64, seed=0)
    x = np.random.default_rng(0).standard_normal((50, 1, 64), np.float32)
    results = []
    for threads in (1, 8):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        results.append(net.infer(x).y)
    inside = int(thread_pool._pool.sync[sync.TICKET] % sync.TICKET_STEP - sync.CLOSED)
    assert inside == sharing(64, 1, 8).threads < 8
    assert np.array_equal(*results)


@pytest.mark.parametrize(("come", "inside"), [(8, 8), (7, 4), (4, 4), (3, 3), (1, 1)])
def test_usable_threads_make_whole_teams(come, inside):
    """Of a schedule for four teams of two; with fewer than one for each team all share out the units."""
    bounds, flags = np.arange(5), dict(split=True, pipelined=False, keeps_gates=False)
    schedule = Schedule(bounds=bounds, panel_grain=0, num_passes=1, lag=1, chunk=1, threads=8, **flags)
    assert for_python(usable_threads)(come, schedule) == inside
    assert for_python(usable_threads)(come, schedule._replace(bounds=bounds[:3], num_passes=2)) == inside


@pytest.mark.cores(2)
def test_unneeded_worker_goes_to_sleep():
    """Also while calls go on, each with as many threads as it asks for."""
    elements = np.zeros(sync.sync_size(2), np.int64)
    serve = thread_pool._machine_code(sync.serve, (elements, 0, 0))
    elements[sync._NUM_TICKETS], number = 2, 0
    with ThreadPoolExecutor(1) as pool:
        worker, deadline = pool.submit(serve, elements, 0, 5_000_000), time.monotonic() + 30
        while not worker.done() and time.monotonic() < deadline:
            number += 1
            elements[sync.TICKET] = number * sync.TICKET_STEP + sync.CLOSED + 2
        assert worker.done()


@pytest.mark.cores(2)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_missing_worker_is_not_waited_for(monkeypatch, bidirectional):
    """All others know how many they are, where they would have been whole teams with it."""
    limits = {"WAKE_THRESHOLD": 0, "SINGLE_THREAD_WORK": 0, "_WAKING_WORK": 1, "WORK_PER_SPIN": 1}
    for name, value in limits.items():
        monkeypatch.setattr(thread_pool, name, value)
    monkeypatch.setattr(scheduler, "best_sharing", lambda *sizes, **_: Sharing(2, sizes[-1]))
    monkeypatch.setattr("rnnkit.cpu.route._STEPWISE_WORK", 0)
    net = rnnkit.LSTM(65, 65, bidirectional=bidirectional, seed=0)
    x = np.random.default_rng(0).standard_normal((20, 5, 65), np.float32)

    def results(threads):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda: threads)
        y, hy, cy, workspace = net.forward(x)
        return y.copy(), net.backward(workspace, y).dw, net.infer(x).y

    size = 8 if bidirectional else 4
    alone, together = results(1), results(size)
    deadline = time.monotonic() + 60
    while not all(worker.asleep for worker in thread_pool._pool.workers):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    monkeypatch.setattr(thread_pool._pool.workers[-1], "ring", lambda: None)
    for found in (together, results(size)):
        assert all(np.array_equal(one, other) for one, other in zip(found, alone, strict=True))
    assert int(thread_pool._pool.sync[sync.TICKET] % sync.TICKET_STEP - sync.CLOSED) == size - 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 5))
def test_rows_are_cut_where_the_work_is_balanced(lengths, parts):
    """Each boundary follows the fewest rows, in the order of the steps, that have so much of the work."""
    rows = StepRows(9, len(lengths), padded=True)
    for batch in [9] * len(lengths), lengths:
        rows.relist(max(batch), np.array(batch))
        work = np.concatenate([[0], np.cumsum(sorted(batch, reverse=True))])
        expected = [int(np.argmax(work * parts >= part * work[-1])) for part in range(parts + 1)]
        assert rows.bounds(parts).tolist() == expected
