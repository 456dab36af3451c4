"""The team of threads by itself: who takes part, how its threads meet, and how they share out a loop's work."""

import os
import threading
import time

import numba
import numpy as np
import pytest
from compiled import for_python
from messages import says

from rnnkit_kernels.machine import partition, sync, thread_pool
from rnnkit_kernels.machine.arguments import types_of
from rnnkit_kernels.machine.bound import values_of
from rnnkit_kernels.machine.jit import inner, kernel
from rnnkit_kernels.machine.partition import next_block, num_claims, split_team
from rnnkit_kernels.machine.sync import (
    Team,
    _add,
    _pause,
    _wait,
    barrier,
    join,
    load,
    post_call,
    post_progress,
    wait_for_progress,
)
from rnnkit_kernels.machine.thread_pool import bound  # without the check of `conftest`

pytestmark = pytest.mark.cores(2)

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
def two_threads(monkeypatch):
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: 2)


@pytest.mark.parametrize(("work", "expected"), [(MUCH, [2, 2]), (1, [1, 0])])
def test_large_work_is_shared_and_small_work_is_not(two_threads, work, expected):
    seen = np.zeros(2)
    thread_pool.run(_sign, work, seen)
    assert seen.tolist() == expected


@pytest.mark.parametrize(("work", "expected"), [(MUCH, [2, 2]), (1, [1, 0])])
def test_what_is_bound_runs_as_work_of_its_size_does(two_threads, work, expected):
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


def test_a_last_argument_of_another_type_than_laid_out_is_noticed():
    """By the tests alone."""
    call = thread_pool.bound(_sign_bound, 1, np.zeros(2))
    call(np.zeros(2))
    with pytest.raises(AssertionError, match="type"):
        call(np.zeros(2, np.float32))


def test_an_address_in_place_of_an_array():
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


@pytest.mark.parametrize("size", [3, 4])
def test_every_rank_has_its_own_number(monkeypatch, size):
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: size)
    for _ in range(20):
        seen = np.zeros(size)
        thread_pool.run(_sign, MUCH, seen)
        assert seen.tolist() == [size] * size


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
def test_independent_tasks_have_teams_that_meet_by_themselves(monkeypatch, size, tasks, split):
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: size)
    thread_pool.run(_meet_in_teams, MUCH, np.zeros((size, 6), np.int64), 300, tasks, split)
    seen = np.zeros((size, 6), np.int64)
    thread_pool.run(_meet_in_teams, MUCH, seen, 300, tasks, split)
    if split and size % tasks == 0:
        own = size // tasks
        wanted = [[thread_id // own, thread_id // own + 1, thread_id % own, own] for thread_id in range(size)]
    else:
        wanted = [[0, tasks, thread_id, size] for thread_id in range(size)]
    assert seen[:, :4].tolist() == wanted
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
def test_a_team_follows_another(monkeypatch, size):
    """Also in a second call, where the first one's last progress is void."""
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: size)
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
def test_every_item_is_one_threads(monkeypatch, size, count, grain):
    """In every round and call, whoever comes late: without a grain the item's owner's."""
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: size)
    for slow in range(-1, size if size > 1 else 0):
        seen = np.zeros((50, count))
        thread_pool.run(_claim, MUCH, seen, np.zeros(50, np.int64), count, grain, slow)
        assert np.all((seen >= 1) & (seen <= size))
        if grain == 0:
            assert np.array_equal(seen, np.broadcast_to(_shares(count, size), seen.shape))


@pytest.mark.parametrize("passed", [0, 3, 2**43 - 1, 2**43 + 1])
def test_a_rank_begins_with_its_own_share(passed):
    """Also after so many barriers that the count of what is taken wraps, behind an earlier loop or none."""
    found, elements = for_python(next_block), np.zeros(sync.sync_size(2), np.int64)
    elements[sync.PASSED] = passed
    first, second = Team(0, 2, elements), Team(1, 2, elements)
    assert [found(claim, 64, 4, first) for claim in range(16)] == [(4 * n, 4 * n + 4) for n in range(16)]
    elements[sync.PASSED] += 1  # a barrier
    assert [found(claim, 64, 4, second) for claim in (0, 1, 7, 8)] == [(32, 36), (36, 40), (32, 32), (0, 4)]
    assert [found(claim, 64, 4, first) for claim in (0, 1)] == [(0, 0), (4, 8)]


def test_a_slow_rank_leaves_its_share_to_the_others(two_threads):
    seen = np.zeros((50, 64))
    thread_pool.run(_claim, MUCH, seen, np.zeros(50, np.int64), 64, 4, 0)
    assert np.all((seen == 1).sum(axis=1) <= 4)


def test_after_an_error_in_the_caller_the_next_call_works(two_threads, monkeypatch):
    """Also where the workers have been called and wait for a kernel that is never entered."""

    def troubled(seen, thread_id, size, sync):
        if thread_id == 0:
            raise _Trouble
        _sign(seen, thread_id, size, sync)

    seen = np.zeros(2)
    monkeypatch.setitem(thread_pool._code, (troubled, types_of(troubled, (seen,))), troubled)
    with pytest.raises(_Trouble):
        thread_pool.run(troubled, MUCH, seen)
    assert seen.tolist() == [0, 0]
    thread_pool.run(_sign, MUCH, seen)
    assert seen.tolist() == [2, 2]


def test_a_worker_that_comes_too_late_is_not_waited_for(two_threads, monkeypatch):
    """The caller runs alone when its wait limit is reached; the worker that comes later does not take part."""
    late, seen = threading.Event(), np.zeros(2)

    def delayed(*arguments):
        late.wait()
        return serve(*arguments)

    thread_pool.run(_sign, MUCH, seen)
    _wait_until_asleep()
    serve = thread_pool._pool.serve
    monkeypatch.setattr(thread_pool._pool, "serve", delayed)
    seen[:] = 0
    thread_pool.run(_sign, LITTLE, seen)
    assert seen.tolist() == [1, 0]
    late.set()
    _wait_until_asleep()
    assert seen.tolist() == [1, 0]
    thread_pool.run(_sign, MUCH, seen)
    assert seen.tolist() == [2, 2]


def test_a_sleeping_worker_is_woken(two_threads):
    for _ in range(3):
        seen = np.zeros(2)
        thread_pool.run(_sign, MUCH, seen)
        assert seen.tolist() == [2, 2]
        _wait_until_asleep()


def test_brief_work_is_shared_by_workers_that_are_awake(two_threads):
    """One call does not wake them; calls that follow each other closely do."""
    seen = np.zeros(2)
    thread_pool.run(_sign, MUCH, seen)
    _wait_until_asleep()
    seen[:] = 0
    number = thread_pool._pool.number
    thread_pool.run(_sign, BRIEF, seen)
    assert thread_pool._pool.number == number, "the team was called"
    assert seen.tolist() == [1, 0]
    deadline = time.monotonic() + 20
    while seen[1] == 0 and time.monotonic() < deadline:
        thread_pool.run(_sign, BRIEF, seen)
    assert seen.tolist() == [2, 2]


def test_the_number_of_threads_is_numbas():
    before = numba.get_num_threads()
    assert thread_pool.wanted_size() == before
    numba.set_num_threads(1)
    assert thread_pool.wanted_size() == 1
    numba.set_num_threads(before)


def test_what_only_kernels_call_says_so():
    with pytest.raises(TypeError, match=says("partition")):
        partition.partition(10, 1, 3)


def test_a_kernel_of_a_team_is_not_called_without_one():
    with pytest.raises(TypeError, match=says("_sign", "thread_pool.run(_sign, work, ...)")):
        _sign(np.zeros(1), 0, 1, np.zeros(sync.sync_size(1), np.int64))


def test_a_team_runs_no_other_kernel():
    expected = says("serve:", "thread_id, size and sync", "sync, known, most_spins")
    for call in (lambda: thread_pool.run(sync.serve, 1, 0, 0), lambda: thread_pool.bound(sync.serve, 1, 0, 0)):
        with pytest.raises(TypeError, match=expected):
            call()


@pytest.mark.parametrize("last", ["thread_id, sync, size", "thread_id, size, sync, seen", "thread_id, size"])
def test_what_a_team_says_comes_last(last):
    made = {}
    exec(f"def wrong({last}): pass", made)
    with pytest.raises(TypeError, match=says("wrong: thread_id, size and sync", f"got {last}")):
        kernel(made["wrong"])


def test_a_call_is_not_posted_from_elsewhere():
    @kernel
    def posts(sync, seen):
        post_call(sync, 0, 2)

    with pytest.raises(TypeError, match=says("post_call:", "thread_id, size and sync")):
        posts(np.zeros(sync.sync_size(1), np.int64), 1)
