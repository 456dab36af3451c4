"""Processes made in every way, at any moment: a child works, or raises; it never hangs and is never wrong."""

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback

import numpy as np
import pytest
from child import run_children
from work import Caller, callers, small_problem, threads_that_go_on

COMPUTING = 4  # threads that call while the process forks
LIMIT = 300  # seconds, which only what hangs takes
WORKED, RAISED, WRONG = 0, 17, 18  # how a forked child ends


def fork(function):
    """The id of a forked child that calls the function and says by its exit status how that went."""
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = RAISED
    try:
        faulthandler.register(signal.SIGALRM, chain=True)  # writes where it hangs, and ends it
        signal.alarm(LIMIT)
        function()
        status = WORKED
    except AssertionError:
        traceback.print_exc()
        status = WRONG
    except Exception:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def assert_works(pids):
    """All the children end, and have found nothing wrong; the count of those that raised."""
    found = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert set(found) <= {WORKED, RAISED}, f"forked children ended with {found}, those that hang with -14"
    return found.count(RAISED)


def fork_while_threads_compute(trial):
    """Forked children call everything, threads of theirs too, while the parent's threads go on."""
    known = callers(trial.rng, 3)
    for caller in known:
        caller.all()

    def in_child():
        rng = np.random.default_rng(os.getpid())
        for caller in known:
            caller.any(rng)
        thread = threading.Thread(target=known[0].infer)
        thread.start()
        thread.join()

    with threads_that_go_on(lambda rng: known[rng.integers(len(known))].any(rng), COMPUTING):
        for _ in trial.rounds():
            time.sleep(trial.rng.uniform(0, 0.01))
            raised = assert_works([fork(in_child) for _ in range(3)])
            assert raised == 0, "every kernel was loaded before the fork"
            trial.count(forks=3)


def fork_of_fork(trial):
    """Children of children, each of which has called before it forks."""
    known = callers(trial.rng, 5)  # some of whose work is shared out for certain

    def generation(left):
        for caller in known:
            caller.train()
        if left:
            assert assert_works([fork(lambda: generation(left - 1))]) == 0
            known[0].infer()

    for _ in trial.rounds():
        generation(3)
        trial.count(forks=3)


WORKS = [
    (fork_while_threads_compute, dict(threads=1)),
    (fork_while_threads_compute, dict(threads=4)),
    (fork_of_fork, dict(threads=2)),
]


@pytest.mark.parametrize(("work", "options"), WORKS)
def test_forked_children_work_at_any_moment(trial, work, options):
    run_children(trial, work, **options)


def call_everything(seed):
    """What a worker of a pool does; the problem and its right results are made there."""
    Caller(*small_problem(np.random.default_rng(seed))).all()
    return os.getpid()


def make_pools(trial, method):
    """Pools of workers, the first before this process calls the engine, the others while it does."""
    context, known = multiprocessing.get_context(method), []
    for _ in trial.rounds(2):
        with context.Pool(2) as workers:
            found = workers.map_async(call_everything, trial.rng.integers(2**32, size=6), chunksize=1)
            for caller in known:
                caller.infer()
            assert os.getpid() not in found.get()
        known = known or callers(trial.rng, 2)
        trial.count(forks=2, pool_calls=6)


@pytest.mark.share(2)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_pools_work_with_every_start_method(trial, method):
    run_children(trial, make_pools, method=method, threads=2)
