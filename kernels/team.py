"""A team of threads that run one kernel together, each on its part.

Why not Numba's threading layers: OpenMP kills a forked child, workqueue aborts when two Python threads call at once
and takes 87 us for a fork and join, TBB has to be installed and preloaded. A team's members meet at atomic counters
inside the kernel instead, which costs well below a microsecond a step, and the layers stay to the user's own code.

A helper thread waits inside a compiled loop for a while after each kernel, then sleeps. If the team is busy with a call
of another Python thread, or the work is small, the caller runs the kernel alone: results do not depend on it.
"""

import os
import threading
from queue import SimpleQueue
from typing import NamedTuple

import numba
import numpy as np
from numba.np.ufunc import parallel

from .barrier import SYNC_SIZE, wait_for_work

_SMALL_WORK = 4_000_000  # multiply-adds, about 30 us on one thread: what a team needs to start
_PATIENCE = 20_000  # turns of a helper's waiting loop, about 200 us; a sleeping one takes 80 us to wake
_NEVER = 1 << 62  # arrivals that let every meeting pass


class _Job(NamedTuple):
    number: int
    kernel: object
    arguments: tuple


class _Team:
    def __init__(self, size):
        self.size = size
        self.busy = threading.Lock()
        self.sync = np.zeros(SYNC_SIZE, np.int64)
        self.job = _Job(0, None, ())
        self.error = None
        self.dismissed = False
        self.helpers = [_Helper(self, member) for member in range(1, size)]

    def run(self, kernel, arguments):
        """Run the kernel on all members; the lock is held by the caller."""
        number = self.job.number + 1
        self.job = _Job(number, kernel, arguments)
        for helper in self.helpers:
            if helper.asleep:
                helper.wake.put(None)
        try:
            kernel(*arguments, 0, self.size, self.sync)
        except BaseException:
            self.give_up(None)
            raise
        finally:
            self.job = _Job(number, None, ())  # every helper has taken it: let go of the arrays
        if self.error is not None:
            raise self.error

    def give_up(self, error):
        """Let nobody wait for a member that will not come, and let no call use this team again."""
        self.error = error
        self.sync[0] = _NEVER
        _forget(self)

    def dismiss(self):
        """End the helpers."""
        self.dismissed = True
        for helper in self.helpers:
            helper.wake.put(None)


class _Helper(threading.Thread):
    def __init__(self, team, member):
        super().__init__(name=f"rnnkit-{member}", daemon=True)
        self.team, self.member = team, member
        self.wake = SimpleQueue()
        self.asleep = False
        self.start()

    def run(self):
        team, done = self.team, 0
        while True:
            wait_for_work(team.sync, done, _PATIENCE)
            self.asleep = True  # before the look at the job: a job given after that look wakes
            if team.job.number == done and not team.dismissed:
                self.wake.get()
            self.asleep = False
            if team.dismissed:
                return
            job = team.job
            if job.number == done:
                continue
            done = job.number
            try:
                job.kernel(*job.arguments, self.member, team.size, team.sync)
            except BaseException as error:
                team.give_up(error)
                return
            del job


_creation = threading.Lock()
_team = None
_alone = np.zeros(SYNC_SIZE, np.int64)


def wanted_size():
    """Return the number of threads: NUMBA_NUM_THREADS, or what numba.set_num_threads said since."""
    # Asking Numba itself would start its threading layer.
    return numba.get_num_threads() if parallel._is_initialized else numba.config.NUMBA_NUM_THREADS


def _current():
    """The team of the wanted size, its lock taken, or None while another thread's call has it."""
    global _team
    size = wanted_size()
    with _creation:
        if _team is None or _team.size != size:
            if _team is not None and not _team.busy.acquire(blocking=False):
                return None
            if _team is not None:
                _team.dismiss()
            _team = _Team(size)
        return _team if _team.busy.acquire(blocking=False) else None


def _forget(team=None):
    global _team
    if team is None or team is _team:
        _team = None


def run(kernel, work, *arguments):
    """Run `kernel(*arguments, member, members, sync)` on all members of the team, for `work` multiply-adds in all."""
    team = _current() if work > _SMALL_WORK and wanted_size() > 1 else None
    if team is None:
        kernel(*arguments, 0, 1, _alone)
        return
    try:
        team.run(kernel, arguments)
    finally:
        team.busy.release()


def _after_fork():
    """A forked child has none of its parent's threads: its first call makes a team of its own."""
    global _creation
    _creation = threading.Lock()
    _forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
