"""The team of threads by itself: who takes part, how its members meet, and how they share out a loop's work."""

import os
import threading
import time

import numba
import numpy as np
import pytest
from compiled import for_python

from rnnkit.kernels.machine import barrier, partition, team
from rnnkit.kernels.machine.barrier import _add, _pause, _wait, follow, gather, load, meet, publish, report
from rnnkit.kernels.machine.jit import kernel
from rnnkit.kernels.machine.partition import claim, divide, turns

MUCH, LITTLE, BRIEF = 10**13, 10**7, 10**6  # multiply-adds: the caller waits for helpers half of what they take
KIND = "test"


@kernel
def _sign(seen, member, members, sync):
    publish(sync, member, members)
    members = gather(sync, member, members)
    seen[member] = members
    meet(sync, members)


class _Trouble(Exception):
    pass


def _wait_until_asleep():
    (helper,) = team._team.helpers
    deadline = time.monotonic() + 20
    while not helper.asleep and time.monotonic() < deadline:
        os.sched_yield()
    assert helper.asleep


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(team, "wanted_size", lambda: 2)


@pytest.mark.parametrize(("work", "expected"), [(MUCH, [2, 2]), (1, [1, 0])])
def test_large_work_is_shared_and_small_work_is_not(two_threads, work, expected):
    seen = np.zeros(2)
    team.run(_sign, KIND, work, seen)
    assert seen.tolist() == expected


@pytest.mark.parametrize(
    "wrong",
    [np.zeros(2, np.int64), np.zeros(2, np.float32), np.zeros(4)[::2], np.zeros((2, 1))],
    ids=["integers", "single precision", "strided", "two dimensions"],
)
def test_a_call_with_other_types_than_were_compiled_is_noticed(wrong):
    """By the tests alone: the machine code would take the array for what it is not."""
    team.run(_sign, KIND, 1, np.zeros(2))
    with pytest.raises(AssertionError, match="compiled for"):
        team.run(_sign, KIND, 1, wrong)


@pytest.mark.parametrize("size", [3, 4])
def test_every_member_has_its_own_number(monkeypatch, size):
    monkeypatch.setattr(team, "wanted_size", lambda: size)
    for _ in range(20):
        seen = np.zeros(size)
        team.run(_sign, KIND, MUCH, seen)
        assert seen.tolist() == [size] * size


@kernel
def _meet_in_crews(seen, turns, tasks, apart, member, members, sync):
    """Rows of `seen`, for each member: what `divide` says, turns so far, turns in which the neighbour was missing."""
    publish(sync, member, members)
    members = gather(sync, member, members)
    first, last, own, crew, crew_sync = divide(tasks, apart, member, members, sync)
    seen[member, 0], seen[member, 1], seen[member, 2], seen[member, 3] = first, last, own, crew
    neighbour = member - own + (own + 1) % crew
    for turn in range(turns * (first + 1)):  # at its own pace
        seen[member, 4] = turn + 1
        meet(crew_sync, crew)
        seen[member, 5] += seen[neighbour, 4] <= turn
    meet(sync, members)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_independent_tasks_have_crews_that_meet_by_themselves(monkeypatch, size, tasks, apart):
    monkeypatch.setattr(team, "wanted_size", lambda: size)
    team.run(_meet_in_crews, KIND, MUCH, np.zeros((size, 6), np.int64), 300, tasks, apart)
    if size > 1:
        team._team.sync[barrier.ARRIVED :: team._team.sync.size // barrier.CREWS] += 1  # as after crews of other sizes
    seen = np.zeros((size, 6), np.int64)
    team.run(_meet_in_crews, KIND, MUCH, seen, 300, tasks, apart)
    if apart and size % tasks == 0:
        crew = size // tasks
        wanted = [[member // crew, member // crew + 1, member % crew, crew] for member in range(size)]
    else:
        wanted = [[0, tasks, member, size] for member in range(size)]
    assert seen[:, :4].tolist() == wanted
    assert not seen[:, 5].any()


@kernel
def _follow(written, seen, member, members, sync):
    """The first of two crews writes row after row, slowly; `seen` is what the second finds there."""
    publish(sync, member, members)
    members = gather(sync, member, members)
    task, _, own, crew, crew_sync = divide(2, True, member, members, sync)
    for row in range(len(written)):
        if task == 1:
            follow(sync, row + 1)
            seen[row, own] = written[row].sum()
            continue
        for _ in range(own * 100):
            _pause()
        written[row, own] = 1
        meet(crew_sync, crew)
        if own == 0:
            report(sync, row + 1)
    meet(sync, members)


@pytest.mark.parametrize("size", [2, 4])
def test_a_crew_follows_another(monkeypatch, size):
    """Also in a second call, where the first one's last report is void."""
    monkeypatch.setattr(team, "wanted_size", lambda: size)
    for _ in range(2):
        seen = np.zeros((300, size // 2))
        team.run(_follow, KIND, MUCH, np.zeros((300, size // 2)), seen)
        assert np.all(seen == size // 2)


@kernel
def _claim(seen, done, count, size, slow, member, members, sync):
    """Rows of `seen`: by whom, counted from 1, each piece was worked on in a round; `done` is how many, of all members.

    The slow member does nothing behind its first range of a round until all the others are done with all the rest.
    """
    publish(sync, member, members)
    members = gather(sync, member, members)
    for number in range(len(seen)):
        for turn in range(turns(count, size, members)):
            first, last = claim(turn, count, size, member, members, sync)
            for piece in range(first, last):
                seen[number, piece] = 10 * seen[number, piece] + member + 1
            _add(done, number, last - first)
            spins = 0
            while member == slow and first < last and load(done, number) < count:
                spins = _wait(spins)
        meet(sync, members)


def _shares(count, members):
    return np.searchsorted(np.arange(members + 1) * count // members, np.arange(count), side="right")


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (7, 3), (64, 8), (100, 1), (9, 0), (0, 0)])
@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_every_piece_is_one_members(monkeypatch, members, count, size):
    """In every round and call, whoever comes late: without a size the piece's owner's."""
    monkeypatch.setattr(team, "wanted_size", lambda: members)
    for slow in range(-1, members if members > 1 else 0):
        seen = np.zeros((50, count))
        team.run(_claim, KIND, MUCH, seen, np.zeros(50, np.int64), count, size, slow)
        assert np.all((seen >= 1) & (seen <= members))
        if size == 0:
            assert np.array_equal(seen, np.broadcast_to(_shares(count, members), seen.shape))


@pytest.mark.parametrize("arrived", [0, 3, 2**43 - 1, 2**43 + 1])
def test_a_member_begins_with_its_own_share(arrived):
    """Also after so many meetings that the count of what is taken wraps, behind an earlier loop or none."""
    claim_piece, sync = for_python(claim), np.zeros(barrier.sync_size(2), np.int64)
    sync[[barrier.ARRIVED, barrier.BASE]] = arrived
    assert [claim_piece(turn, 64, 4, 0, 2, sync) for turn in range(16)] == [(4 * n, 4 * n + 4) for n in range(16)]
    sync[barrier.ARRIVED] += 2  # a meeting
    assert [claim_piece(turn, 64, 4, 1, 2, sync) for turn in (0, 1, 7, 8)] == [(32, 36), (36, 40), (32, 32), (0, 4)]
    assert [claim_piece(turn, 64, 4, 0, 2, sync) for turn in (0, 1)] == [(0, 0), (4, 8)]


def test_a_slow_member_leaves_its_share_to_the_others(two_threads):
    seen = np.zeros((50, 64))
    team.run(_claim, KIND, MUCH, seen, np.zeros(50, np.int64), 64, 4, 0)
    assert np.all((seen == 1).sum(axis=1) <= 4)


def test_after_an_error_in_the_caller_the_next_call_works(two_threads, monkeypatch):
    """Also where the helpers have been called and wait for a kernel that is never entered."""

    def troubled(seen, member, members, sync):
        if member == 0:
            raise _Trouble
        _sign(seen, member, members, sync)

    monkeypatch.setitem(team._code, (troubled, KIND), troubled)
    seen = np.zeros(2)
    with pytest.raises(_Trouble):
        team.run(troubled, KIND, MUCH, seen)
    assert seen.tolist() == [0, 0]
    team.run(_sign, KIND, MUCH, seen)
    assert seen.tolist() == [2, 2]


def test_a_helper_that_comes_too_late_is_not_waited_for(two_threads, monkeypatch):
    """The caller goes on alone when its patience ends, and the helper finds the door closed."""
    late, seen = threading.Event(), np.zeros(2)

    def delayed(*arguments):
        late.wait()
        return serve(*arguments)

    team.run(_sign, KIND, MUCH, seen)
    _wait_until_asleep()
    serve = team._team.serve
    monkeypatch.setattr(team._team, "serve", delayed)
    seen[:] = 0
    team.run(_sign, KIND, LITTLE, seen)
    assert seen.tolist() == [1, 0]
    late.set()
    _wait_until_asleep()
    assert seen.tolist() == [1, 0]
    team.run(_sign, KIND, MUCH, seen)
    assert seen.tolist() == [2, 2]


def test_a_sleeping_helper_is_woken(two_threads):
    for _ in range(3):
        seen = np.zeros(2)
        team.run(_sign, KIND, MUCH, seen)
        assert seen.tolist() == [2, 2]
        _wait_until_asleep()


def test_brief_work_is_shared_by_helpers_that_are_awake(two_threads):
    """One call does not wake them; calls that follow each other closely do."""
    seen = np.zeros(2)
    team.run(_sign, KIND, MUCH, seen)
    _wait_until_asleep()
    seen[:] = 0
    number = team._team.number
    team.run(_sign, KIND, BRIEF, seen)
    assert team._team.number == number, "the team was called"
    assert seen.tolist() == [1, 0]
    deadline = time.monotonic() + 20
    while seen[1] == 0 and time.monotonic() < deadline:
        team.run(_sign, KIND, BRIEF, seen)
    assert seen.tolist() == [2, 2]


def test_the_number_of_threads_is_numbas():
    before = numba.get_num_threads()
    assert team.wanted_size() == before
    numba.set_num_threads(1)
    assert team.wanted_size() == 1
    numba.set_num_threads(before)


def test_what_only_kernels_call_says_so():
    with pytest.raises(TypeError, match="share is for kernels"):
        partition.share(10, 1, 3)
