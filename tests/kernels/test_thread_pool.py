"""The team of threads by itself: who takes part, how its threads meet, and how they share out a loop's work."""

import os
import threading
import time

import numba
import numpy as np
import pytest
from compiled import for_python
from messages import says

from rnnkit_kernels.machine import sync, thread_pool
from rnnkit_kernels.machine.arguments import types_of
from rnnkit_kernels.machine.bound import values_of
from rnnkit_kernels.machine.jit import inner, kernel
from rnnkit_kernels.machine.partition import next_block, num_claims, split_team
from rnnkit_kernels.machine.sync import Team, barrier, join, load, post_call, post_progress, wait_for_progress
from rnnkit_kernels.machine.thread_pool import bound  # without the check of `conftest`

pytestmark = pytest.mark.cores(2)

_add, _pause, _wait = sync._add, sync._pause, sync._wait
MUCH, LITTLE, BRIEF = 10**13, 10**7, 10**6  # multiply-adds: the caller waits for workers half of what they take


@inner
def _sign_as(thread_id, size, seen, sync):
    team = join(sync, thread_id, size)
    seen[thread_id] = team.size
    barrier(team)


@kernel
def _sign(seen, thread_id, size, sync):
    post_call(sync, thread_id, size)
    _sign_as(thread_id, size, seen, sync)


@kernel
def _sign_bound(bound, seen, thread_id, size, sync):
    post_call(sync, thread_id, size)
    _sign_as(thread_id, size, seen, sync)


@kernel
def _size(bound, given, thread_id, size, sync):
    post_call(sync, thread_id, size)
    team = join(sync, thread_id, size)
    (found,) = values_of(bound)
    found[0] = given.size
    barrier(team)


class _Trouble(Exception):
    pass


def _wait_until_asleep():
    (worker,) = thread_pool._pool.workers
    deadline = time.monotonic() + 20
    while not worker.asleep and time.monotonic() < deadline:
        os.sched_yield()
    assert worker.asleep


@pytest.fixture
def wanted(monkeypatch):
    """Call it with the number of threads that calls are to have."""
    return lambda size: monkeypatch.setattr(thread_pool, "wanted_size", lambda: size)


@pytest.fixture
def two_threads(wanted):
    wanted(2)


def signed(work):
    """The team's size by thread, 0 of one that took no part."""
    seen = np.zeros(2)
    thread_pool.run(_sign, work, seen)
    return seen.tolist()


@pytest.mark.parametrize(("work", "expected"), [(MUCH, [2, 2]), (1, [1, 0])])
def test_only_large_work_is_shared(two_threads, work, expected):
    assert signed(work) == expected
    seen, like = np.zeros((2, 2)), np.zeros(1)
    call = bound(_sign_bound, work, like)
    for row in seen:
        call(row)
    assert seen.tolist() == [expected] * 2 and like[0] == 0


def test_every_call_runs_the_code_of_its_types():
    """Whatever was called before: other code would take an array for what it is not."""
    for seen in (np.zeros(1), np.zeros(1, np.int64), np.zeros(1, np.float32), np.zeros((1, 1))):
        thread_pool.run(_sign, 1, seen)
        assert seen.item() == 1
        seen[:] = 0
        bound(_sign_bound, 1, seen)(seen)
        assert seen.item() == 1


def test_last_argument_of_another_type_is_noticed():
    call = thread_pool.bound(_sign_bound, 1, np.zeros(2))
    call(np.zeros(2))
    with pytest.raises(AssertionError, match="type"):
        call(np.zeros(2, np.float32))


def test_address_is_taken_in_place_of_an_array():
    """Of arrays of one dimension that each call gives; what is called with it may not ask for a size."""
    seen = np.zeros((2, 3))
    for value in (seen, seen.ctypes.data):
        thread_pool.bound(_sign_bound, 1, np.zeros(1))(value)
        assert seen.reshape(-1).tolist() == [1, 0, 0, 0, 0, 0]
        seen[:] = 0
    found = np.zeros(2, np.int64)
    for value, size in ((0, 0), (seen.ctypes.data, 1 << 40)):
        thread_pool.bound(_size, 1, np.zeros(1), found)(value)
        assert found[0] == size


@kernel
def _meet_in_teams(seen, turns, tasks, split, thread_id, size, sync):
    """Rows of `seen`, one a thread: what `split_team` says, turns so far, turns in which the neighbour was missing."""
    post_call(sync, thread_id, size)
    team = join(sync, thread_id, size)
    own_tasks, own = split_team(tasks, split, team)
    seen[thread_id, 0], seen[thread_id, 1] = own_tasks.start, own_tasks.stop
    seen[thread_id, 2], seen[thread_id, 3] = own.thread_id, own.size
    neighbour = thread_id - own.thread_id + (own.thread_id + 1) % own.size
    for turn in range(turns * (own_tasks.start + 1)):  # at its own pace
        seen[thread_id, 4] = turn + 1
        barrier(own)
        seen[thread_id, 5] += seen[neighbour, 4] <= turn
    barrier(team)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_independent_tasks_have_their_own_teams(wanted, size, tasks, split):
    wanted(size)
    for _ in range(2):
        seen = np.zeros((size, 6), np.int64)
        thread_pool.run(_meet_in_teams, MUCH, seen, 300, tasks, split)
    if split and size % tasks == 0:
        own = size // tasks
        expected = [[thread_id // own, thread_id // own + 1, thread_id % own, own] for thread_id in range(size)]
    else:
        expected = [[0, tasks, thread_id, size] for thread_id in range(size)]
    assert seen[:, :4].tolist() == expected
    assert not seen[:, 5].any()


@kernel
def _follow(written, seen, thread_id, size, sync):
    """The first of two teams writes row after row, slowly; `seen` is what the second finds there."""
    post_call(sync, thread_id, size)
    team = join(sync, thread_id, size)
    tasks, own = split_team(2, True, team)
    for row in range(len(written)):
        if tasks.start == 1:
            wait_for_progress(team, row + 1)
            seen[row, own.thread_id] = written[row].sum()
            continue
        for _ in range(own.thread_id * 100):
            _pause()
        written[row, own.thread_id] = 1
        barrier(own)
        if own.thread_id == 0:
            post_progress(team, row + 1)
    barrier(team)


@pytest.mark.parametrize("size", [2, 4])
def test_team_waits_for_the_progress_of_another(wanted, size):
    """Also in a second call, where the first one's last progress is void."""
    wanted(size)
    for _ in range(2):
        seen = np.zeros((300, size // 2))
        thread_pool.run(_follow, MUCH, np.zeros((300, size // 2)), seen)
        assert np.all(seen == size // 2)


@kernel
def _claim(seen, done, count, grain, slow, thread_id, size, sync):
    """Rows of `seen`: by whom, counted from 1, each item was worked on in a round; `done` is how many, of all threads.

    The slow thread does nothing behind its first block of a round until all the others are done with all the rest.
    """
    post_call(sync, thread_id, size)
    team = join(sync, thread_id, size)
    for number in range(len(seen)):
        for claim in range(num_claims(count, grain, team)):
            block = next_block(claim, count, grain, team)
            for item in range(block.start, block.stop):
                seen[number, item] = 10 * seen[number, item] + thread_id + 1
            _add(done, number, block.stop - block.start)
            spins = 0
            while thread_id == slow and block.start < block.stop and load(done, number) < count:
                spins = _wait(spins)
        barrier(team)


def _shares(count, size):
    return np.searchsorted(np.arange(size + 1) * count // size, np.arange(count), side="right")


@pytest.mark.parametrize(("count", "grain"), [(0, 3), (1, 3), (7, 3), (64, 8), (100, 1), (9, 0), (0, 0)])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_item_is_claimed_by_one_thread(wanted, size, count, grain):
    """In every round and call, whoever comes late: without a grain by its owner."""
    wanted(size)
    for slow in range(-1, size if size > 1 else 0):
        seen = np.zeros((50, count))
        thread_pool.run(_claim, MUCH, seen, np.zeros(50, np.int64), count, grain, slow)
        assert np.all((seen >= 1) & (seen <= size))
        if grain == 0:
            assert np.array_equal(seen, np.broadcast_to(_shares(count, size), seen.shape))
        elif slow >= 0:  # what is left of its share is stolen
            assert np.all((seen == slow + 1).sum(axis=1) <= grain)


@pytest.mark.parametrize("passed", [0, 3, 2**43 - 1, 2**43 + 1])
def test_thread_begins_with_its_own_share(passed):
    """Also after so many barriers that the count of what is taken wraps, behind an earlier loop or none."""
    found, elements = for_python(next_block), np.zeros(sync.sync_size(2), np.int64)
    elements[sync.PASSED] = passed
    first, second = Team(0, 2, elements), Team(1, 2, elements)
    assert [found(claim, 64, 4, first) for claim in range(16)] == [(4 * n, 4 * n + 4) for n in range(16)]
    elements[sync.PASSED] += 1  # a barrier
    assert [found(claim, 64, 4, second) for claim in (0, 1, 7, 8)] == [(32, 36), (36, 40), (32, 32), (0, 4)]
    assert [found(claim, 64, 4, first) for claim in (0, 1)] == [(0, 0), (4, 8)]


def test_call_after_an_error_in_the_caller_works(two_threads, monkeypatch):
    """Also where the workers have been called and wait for a kernel that is never entered."""

    def troubled(seen, thread_id, size, sync):
        if thread_id == 0:
            raise _Trouble
        _sign(seen, thread_id, size, sync)

    seen = np.zeros(2)
    monkeypatch.setitem(thread_pool._code, (troubled, types_of(troubled, (seen,))), troubled)
    with pytest.raises(_Trouble):
        thread_pool.run(troubled, MUCH, seen)
    assert seen.tolist() == [0, 0] and signed(MUCH) == [2, 2]


def test_late_worker_is_not_waited_for(two_threads, monkeypatch):
    """The caller runs alone when its wait limit is reached; the worker that comes later does not take part."""
    late, seen = threading.Event(), np.zeros(2)

    def delayed(*arguments):
        late.wait()
        return serve(*arguments)

    signed(MUCH)
    _wait_until_asleep()
    serve = thread_pool._pool.serve
    monkeypatch.setattr(thread_pool._pool, "serve", delayed)
    thread_pool.run(_sign, LITTLE, seen)
    assert seen.tolist() == [1, 0]
    late.set()
    _wait_until_asleep()
    assert seen.tolist() == [1, 0] and signed(MUCH) == [2, 2]


def test_brief_work_is_shared_with_awake_workers_only(two_threads):
    """One call does not wake them, as large work does; calls that follow each other closely do."""
    for _ in range(3):
        assert signed(MUCH) == [2, 2]
        _wait_until_asleep()
    number = thread_pool._pool.number
    assert signed(BRIEF) == [1, 0]
    assert thread_pool._pool.number == number, "the team was called"
    seen, deadline = np.zeros(2), time.monotonic() + 20
    while seen[1] == 0 and time.monotonic() < deadline:
        thread_pool.run(_sign, BRIEF, seen)
    assert seen.tolist() == [2, 2]


def test_number_of_threads_is_numbas(threads_as_before):
    assert thread_pool.wanted_size() == numba.get_num_threads()
    numba.set_num_threads(1)
    assert thread_pool.wanted_size() == 1


def test_kernel_of_a_team_cannot_be_called_directly():
    with pytest.raises(TypeError, match=says("_sign", "thread_pool.run(_sign, work, ...)")):
        _sign(np.zeros(1), 0, 1, np.zeros(sync.sync_size(1), np.int64))


@pytest.mark.parametrize("call", [thread_pool.run, thread_pool.bound])
def test_kernel_without_a_team_is_refused(call):
    with pytest.raises(TypeError, match=says("serve:", "thread_id, size and sync", "sync, known, most_spins")):
        call(sync.serve, 1, 0, 0)


@pytest.mark.parametrize("last", ["thread_id, sync, size", "thread_id, size, sync, seen", "thread_id, size"])
def test_misplaced_parameters_of_a_team_are_refused(last):
    made = {}
    exec(f"def wrong({last}): pass", made)
    with pytest.raises(TypeError, match=says("wrong: thread_id, size and sync", f"got {last}")):
        kernel(made["wrong"])


def test_post_call_outside_of_a_team_is_refused():
    @kernel
    def posts(sync, seen):
        post_call(sync, 0, 2)

    with pytest.raises(TypeError, match=says("post_call:", "thread_id, size and sync")):
        posts(np.zeros(sync.sync_size(1), np.int64), 1)
