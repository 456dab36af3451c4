"""A team of threads that run one kernel together, each on its part.

Why not Numba's threading layers: OpenMP kills a forked child, workqueue aborts when two Python threads call at once
and takes 87 us for a fork and join, TBB has to be installed and preloaded. A team's threads meet at atomic counters
inside the kernel instead, which costs well below a microsecond a step, and the layers stay to the user's own code.

A helper thread waits inside a compiled loop (`sync.serve`) for a while after each kernel, then sleeps. If the team
is busy with a call of another Python thread, if the work is small or no helper comes in time, the caller runs the
kernel alone: results do not depend on it.
"""

import inspect
import math
import threading
import time
from functools import partial
from queue import SimpleQueue

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from numba.np.ufunc import parallel

from .arguments import check_arrays, types_of
from .arrays import signature_of
from .bound import Bound
from .forks import after_fork_in_child
from .jit import TeamKernel
from .sync import AWAKE_SPINS, CLOSED, NUMBER, SPIN_LIMIT, TICKET, TICKET_STEP, serve, sync_size

_SMALL_WORK = 4_000_000  # multiply-adds, about 30 us on one thread: what it takes to wake helpers that sleep
_WAKING_WORK = 250_000  # multiply-adds in the 5 us that the caller takes to wake one of them
BRIEF_WORK = 500_000
"""Multiply-adds up to which a call runs on one thread, about 4 us: more pay with helpers that are awake."""
WORK_PER_SPIN = 6_000  # multiply-adds on one thread in two spins: wait half of what the work takes
_CLOSELY = 100e-6  # seconds between brief calls, within which helpers stay awake


class _Team:
    def __init__(self, size):
        self.size = size
        self.sync = np.zeros(sync_size(size), np.int64)
        self.number = 0  # of the last call
        self.called = 0.0  # when the last brief work came
        self.shut_down = False
        # Compiled before there is a helper: one inside the compiler would leave its lock taken to a forked child.
        self.serve = _machine_code(serve, (self.sync, 0, 0))
        self.helpers = []
        try:
            for _ in range(1, size):
                helper = _Helper(self)
                self.helpers.append(helper)  # before it runs: whoever runs can be shut_down
                helper.start()
        except RuntimeError:  # the system gives no more threads: those that came do the work
            self.helpers.remove(helper)
        except BaseException:
            self.shutdown()
            raise

    def run(self, kernel, work, arguments):
        """Run the kernel on all threads that come; one caller at a time."""
        number = self.number + 1
        closed = number * TICKET_STEP + CLOSED
        try:  # from here on: a call whose tickets never close would keep the helpers awake
            self.number = number
            self.sync[NUMBER], self.sync[SPIN_LIMIT] = number, work // WORK_PER_SPIN
            kernel(*arguments, 0, 1 + self.wake(work), self.sync)
        finally:
            if self.sync[TICKET] < closed:  # it handed out none; no function call: behind it a handler might run
                self.sync[TICKET] = closed

    def is_awake(self, work):
        """Whether as many helpers are awake as pay for brief work; else they are woken if calls follow each other
        closely, for the next call."""
        now = time.perf_counter()
        closely, self.called = now - self.called < _CLOSELY, now
        if sum(not helper.asleep for helper in self.helpers) >= self._paying(work):
            return True
        if closely:
            self.wake(work)
        return False

    def _paying(self, work):
        return min(len(self.helpers), math.isqrt(work // _WAKING_WORK))

    def wake(self, work):
        """Wake helpers that sleep, so that as many are awake as pay for so much work; returns how many that are."""
        sleeping = [helper for helper in self.helpers if helper.asleep]
        awake = len(self.helpers) - len(sleeping)
        woken = sleeping[: max(self._paying(work) - awake, 0)]
        for helper in woken:
            helper.ring()
        return awake + len(woken)

    def shutdown(self):
        """End the helpers."""
        self.shut_down = True
        for helper in self.helpers:
            helper.ring()


class _Helper(threading.Thread):
    def __init__(self, team):
        super().__init__(name="rnnkit", daemon=True)
        self.team = team
        self.wake_event = SimpleQueue()
        self.asleep = False

    def ring(self):
        if self.asleep and self.wake_event.empty():
            self.wake_event.put(None)

    def run(self):
        team, done = self.team, 0
        while not team.shut_down:
            done = team.serve(team.sync, done, AWAKE_SPINS)
            self.asleep = True  # before the look at the number: a call after that look rings
            if team.number <= done and not team.shut_down:
                self.wake_event.get()
            self.asleep = False


_entering = threading.RLock()  # a signal's handler may call, too
_callers = set()
"""A token of the call whose work is shared out. It is put here inside a `try` and taken out in the `finally` by
`discard`, in one step: an exception from a signal handler, which may come between any two instructions, leaves none."""
_code = {}
_team = None


class _Lent(threading.local):
    """What a Python thread's calls run on instead: another number of threads, and another team."""

    size = team = None


_lent = _Lent()
_alone = np.zeros(sync_size(1), np.int64)


class lent:  # a class of its own takes a quarter of the time of a generator
    """Run the kernels that this Python thread calls meanwhile on so many threads; those of `team`, where one is given.

    A team has `run(kernel, work, arguments)` and `is_awake(work)`, as `_Team` has them.
    """

    __slots__ = "given", "before"

    def __init__(self, size, team=None):
        self.given = size, team

    def __enter__(self):
        self.before = _lent.size, _lent.team
        _lent.size, _lent.team = self.given

    def __exit__(self, *error):
        _lent.size, _lent.team = self.before


def wanted_size():
    """Return the number of threads: what was lent, else NUMBA_NUM_THREADS, or what numba.set_num_threads said since."""
    if _lent.size is not None:
        return _lent.size
    # `numba.get_num_threads` would start Numba's threading layer; where it runs, what that asks answers in a tenth of
    # the time.
    return parallel._get_num_threads() if parallel._is_initialized else numba.config.NUMBA_NUM_THREADS


def most_threads():
    """Return the number of threads that calls may come to have; numba.set_num_threads sets no more."""
    return max(wanted_size(), numba.config.NUMBA_NUM_THREADS)


def _enter(call):
    """The team of the wanted size, for this call alone; None while another one has it."""
    global _team
    size = wanted_size()
    with _entering:
        if _callers:
            return None
        _callers.add(call)
        if _lent.team is not None:
            return _lent.team
        if _team is None or _team.size != size:
            if _team is not None:
                _team.shutdown()
            _team = _Team(size)
        return _team


def _machine_code(kernel, arguments):
    """The machine code of a kernel for the arguments' types.

    Under Numba's lock from the first to the last: who holds that while the process forks knows that nobody is in here,
    in an import that Numba puts off until then, say.
    """
    with global_compiler_lock:
        signature = signature_of(arguments)
        kernel.compile(signature)
        return kernel.overloads[signature].entry_point


def _code_of(kernel, arguments):
    """The machine code of a team's kernel for arguments of these types, from now on in _code."""
    key = kernel, types_of(kernel, arguments)
    code = _code.get(key)
    if code is None:
        if not isinstance(kernel, TeamKernel):
            got = ", ".join(inspect.signature(kernel).parameters)
            raise TypeError(f"{kernel.__name__}: the parameters must end in thread_id, size and sync, got {got}")
        check_arrays(kernel, arguments)
        code = _code[key] = _machine_code(kernel, (*arguments, 0, 1, _alone))
    return code


def run(kernel, work, *arguments, site=None):
    """Run `kernel(*arguments, thread_id, size, sync)` on all threads of the team, for `work` multiply-adds in all.

    The look at the arguments' types takes 60 ns for each number and array, those in tuples, too. A `site` is the dict
    of a place that calls each kernel with arguments of the same types every time: only the first call looks at them.
    """
    _run(_code_at(site, kernel, arguments), work, arguments)


def _code_at(site, kernel, arguments):
    if site is None:
        return _code_of(kernel, arguments)
    code = site.get(kernel)
    if code is None:
        code = site[kernel] = _code_of(kernel, arguments)
    return code


def _run(kernel, work, arguments):
    if work <= BRIEF_WORK or wanted_size() == 1:
        kernel(*arguments, 0, 1, _alone)
        return
    call = object()
    try:
        team = _enter(call)
        if team is not None and (work > _SMALL_WORK or team.is_awake(work)):
            team.run(kernel, work, arguments)
        else:
            kernel(*arguments, 0, 1, _alone)
    finally:
        _callers.discard(call)


def bound(kernel, work, like, *arguments, site=None):
    """Return what runs a kernel as `run` does, on these arguments as one `Bound` and a last one that each call gives
    it, which must have the type of `like`.

    With a `site`, as `run` takes it, each call but the first one from there takes 3 to 6 us less.
    """
    own = Bound(arguments)
    code = _code_at(site, kernel, (own, like))
    if work > BRIEF_WORK:
        return lambda last: _run(code, work, (own, last))
    alone = partial(code, own)
    return lambda last: alone(last, 0, 1, _alone)


@after_fork_in_child
def _after_fork():
    """A forked child has none of its parent's threads: its first call makes a team of its own."""
    global _entering, _callers, _team
    _entering, _callers, _team = threading.RLock(), set(), None

