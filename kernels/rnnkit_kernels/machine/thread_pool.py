"""The engine's own thread pool with atomic barriers: a team of threads that run one kernel together.

Why not Numba's threading layers: OpenMP kills a forked child, workqueue aborts when two Python threads call at once
and takes 87 us for a fork and join, TBB has to be installed and preloaded. A team synchronises at atomic counters
inside the kernel, which takes well below a microsecond a step, and leaves Numba's layers to the user's code.

A worker thread spins in a compiled loop (`sync.serve`) for a while after each kernel, then sleeps. If another Python
thread's call uses the pool, if the work is small, or if no worker arrives in time, the caller runs the kernel on its
own; results do not depend on this.
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

WAKE_THRESHOLD = 4_000_000  # multiply-adds, about 30 us on one thread: as long as it takes to wake sleeping workers
_WAKING_WORK = 250_000  # multiply-adds in the 5 us that the caller spends to wake one of them
SINGLE_THREAD_WORK = 500_000
"""Multiply-adds up to which a call runs on one thread, about 4 us; above, it pays to use workers that are awake."""
WORK_PER_SPIN = 6_000  # multiply-adds on one thread in two spins: wait half as long as the work takes
_BURST_SECONDS = 100e-6  # seconds between brief calls, up to which workers are woken for them


class _ThreadPool:
    def __init__(self, size):
        self.size = size
        self.sync = np.zeros(sync_size(size), np.int64)
        self.number = 0  # of the last call
        self.called = 0.0  # time of the last brief call
        self.shut_down = False
        # Compiled before workers exist: one inside the compiler could leave its lock held in a forked child.
        self.serve = _machine_code(serve, (self.sync, 0, 0))
        self.workers = []
        try:
            for _ in range(1, size):
                worker = _Worker(self)
                self.workers.append(worker)  # before it starts, so that `shutdown` reaches it
                worker.start()
        except RuntimeError:  # the system allows no more threads: use those that there are
            self.workers.remove(worker)
        except BaseException:
            self.shutdown()
            raise

    def run(self, kernel, work, arguments):
        """Run the kernel on all threads that arrive; one caller at a time."""
        number = self.number + 1
        closed = number * TICKET_STEP + CLOSED
        try:  # before the number changes: tickets that never close would keep the workers awake
            self.number = number
            self.sync[NUMBER], self.sync[SPIN_LIMIT] = number, work // WORK_PER_SPIN
            kernel(*arguments, 0, 1 + self.wake(work), self.sync)
        finally:
            if self.sync[TICKET] < closed:  # it handed out none; no function call, after which a handler might run
                self.sync[TICKET] = closed

    def is_awake(self, work):
        """Return whether enough workers are awake for brief work. If not, wake them for the next call, provided that
        calls come in quick succession."""
        now = time.perf_counter()
        closely, self.called = now - self.called < _BURST_SECONDS, now
        if sum(not worker.asleep for worker in self.workers) >= self._useful_workers(work):
            return True
        if closely:
            self.wake(work)
        return False

    def _useful_workers(self, work):
        return min(len(self.workers), math.isqrt(work // _WAKING_WORK))

    def wake(self, work):
        """Wake as many sleeping workers as pay for so much work; returns the number of workers that are awake."""
        sleeping = [worker for worker in self.workers if worker.asleep]
        awake = len(self.workers) - len(sleeping)
        woken = sleeping[: max(self._useful_workers(work) - awake, 0)]
        for worker in woken:
            worker.ring()
        return awake + len(woken)

    def shutdown(self):
        """End the workers."""
        self.shut_down = True
        for worker in self.workers:
            worker.ring()


class _Worker(threading.Thread):
    def __init__(self, pool):
        super().__init__(name="rnnkit", daemon=True)
        self.pool = pool
        self.wake_event = SimpleQueue()
        self.asleep = False

    def ring(self):
        if self.asleep and self.wake_event.empty():
            self.wake_event.put(None)

    def run(self):
        pool, done = self.pool, 0
        while not pool.shut_down:
            done = pool.serve(pool.sync, done, AWAKE_SPINS)
            self.asleep = True  # before reading the number: a call after that rings
            if pool.number <= done and not pool.shut_down:
                self.wake_event.get()
            self.asleep = False


_entering = threading.RLock()  # a signal's handler may call, too
_callers = set()
"""A token of the call that uses the pool. It is added inside a `try` and removed in the `finally` by `discard`, in one
step: an exception from a signal handler, which may come between any two instructions, leaves no token behind."""
_code = {}
_pool = None


class _ThreadLocal(threading.local):
    """Override, for one Python thread, of the number of threads and of the pool."""

    size = pool = None


_local = _ThreadLocal()
SINGLE_SYNC = np.zeros(sync_size(1), np.int64)


class thread_override:  # a class takes a quarter of the time of a generator
    """Run the kernels that this Python thread calls meanwhile on `size` threads, or on the threads of `pool`.

    A pool has `run(kernel, work, arguments)` and `is_awake(work)`, as `_ThreadPool` has them.
    """

    __slots__ = "given", "before"

    def __init__(self, size, pool=None):
        self.given = size, pool

    def __enter__(self):
        self.before = _local.size, _local.pool
        _local.size, _local.pool = self.given

    def __exit__(self, *error):
        _local.size, _local.pool = self.before


def wanted_size():
    """Return the number of threads: that of `thread_override`, of numba.set_num_threads, or else NUMBA_NUM_THREADS."""
    if _local.size is not None:
        return _local.size
    # `numba.get_num_threads` would start Numba's threading layer. If that runs, the function inside answers in a tenth
    # of the time.
    return parallel._get_num_threads() if parallel._is_initialized else numba.config.NUMBA_NUM_THREADS


def max_threads():
    """Return the largest number of threads of later calls: numba.set_num_threads sets no more."""
    return max(wanted_size(), numba.config.NUMBA_NUM_THREADS)


def _enter(call):
    """Reserve the pool of the wanted size for this call; None while another call uses it."""
    global _pool
    size = wanted_size()
    with _entering:
        if _callers:
            return None
        _callers.add(call)
        if _local.pool is not None:
            return _local.pool
        if _pool is None or _pool.size != size:
            if _pool is not None:
                _pool.shutdown()
            _pool = _ThreadPool(size)
        return _pool


def _machine_code(kernel, arguments):
    """Return the machine code of a kernel for the arguments' types.

    All of it under Numba's lock: whoever holds the lock during a fork knows that no thread is in here, for example in
    an import that Numba postpones until then.
    """
    with global_compiler_lock:
        signature = signature_of(arguments)
        kernel.compile(signature)
        return kernel.overloads[signature].entry_point


def _code_of(kernel, arguments):
    """Return the machine code of a pool's kernel for arguments of these types, cached in _code."""
    key = kernel, types_of(kernel, arguments)
    code = _code.get(key)
    if code is None:
        if not isinstance(kernel, TeamKernel):
            got = ", ".join(inspect.signature(kernel).parameters)
            raise TypeError(f"{kernel.__name__}: the parameters must end in thread_id, size and sync, got {got}")
        check_arrays(kernel, arguments)
        code = _code[key] = _machine_code(kernel, (*arguments, 0, 1, SINGLE_SYNC))
    return code


def run(kernel, work, *arguments, code_cache=None):
    """Run `kernel(*arguments, thread_id, size, sync)` on all threads of the pool, for `work` multiply-adds in all.

    The key of the arguments' types takes 60 ns for each number and array, also inside tuples. A `code_cache` is the
    dict of a place that always calls each kernel with arguments of the same types: then only the first call computes
    the key.
    """
    _run(_code_at(code_cache, kernel, arguments), work, arguments)


def _code_at(code_cache, kernel, arguments):
    if code_cache is None:
        return _code_of(kernel, arguments)
    code = code_cache.get(kernel)
    if code is None:
        code = code_cache[kernel] = _code_of(kernel, arguments)
    return code


def _run(kernel, work, arguments):
    if work <= SINGLE_THREAD_WORK or wanted_size() == 1:
        kernel(*arguments, 0, 1, SINGLE_SYNC)
        return
    call = object()
    try:
        pool = _enter(call)
        if pool is not None and (work > WAKE_THRESHOLD or pool.is_awake(work)):
            pool.run(kernel, work, arguments)
        else:
            kernel(*arguments, 0, 1, SINGLE_SYNC)
    finally:
        _callers.discard(call)


def bound(kernel, work, like, *arguments, code_cache=None):
    """Return a function of one argument that runs a kernel as `run` does, on `arguments` pre-bound (`Bound`) and then
    on its own argument, which must have the type of `like`.

    With a `code_cache`, as in `run`, each call except the first one from there takes 3 to 6 us less.
    """
    own = Bound(arguments)
    code = _code_at(code_cache, kernel, (own, like))
    if work > SINGLE_THREAD_WORK:
        found = lambda last: _run(code, work, (own, last))  # noqa: E731
    else:
        call = partial(code, own)
        found = lambda last: call(last, 0, 1, SINGLE_SYNC)  # noqa: E731
    found.call = kernel, own, like, work  # for `entries`
    return found


@after_fork_in_child
def _after_fork():
    """Forget the pool: a forked child has none of its parent's threads, and its first call makes a new pool."""
    global _entering, _callers, _pool
    _entering, _callers, _pool = threading.RLock(), set(), None
