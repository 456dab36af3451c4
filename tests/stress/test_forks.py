"""Processes made in every way, at any moment: a child works, or raises; it never hangs and is never wrong."""

import multiprocessing
import os
import shutil
import threading
import time
from itertools import product
from pathlib import Path

import numba
import numpy as np
import pytest
from child import run_child, run_children
from forking import assert_works, fork, fork_while_modules_load
from problems import Problem
from work import Caller, callers, small_problem, threads_that_go_on

from rnnkit_kernels.machine.jit import DIGEST

DROPOUT = ("drop-*", "dropout.drop-*")  # files of that kernel
COMPUTING = 4  # threads that call while the process forks


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


def fork_while_kernels_load(trial):
    """Threads make their first calls, and load kernels under Numba's lock; a child needs kernels that are not there."""
    known = Caller(*small_problem(trial.rng))
    options = product(("lstm", "gru"), ("float32", "float64"), (1, 2))
    others = [Problem(mode, dtype=dtype, num_layers=layers) for mode, dtype, layers in options]

    def in_child():
        known.infer()
        wanted = others[os.getpid() % len(others)]
        wanted.backward(wanted.forward().workspace)

    def load(rng):
        one = others[rng.integers(len(others))]
        one.backward(one.forward().workspace)
        constant = float(rng.random())
        numba.njit(lambda x: x * constant)(1.0)  # the user's own code takes the compiler's lock as well

    with threads_that_go_on(load, 2):
        for _ in trial.rounds():
            time.sleep(trial.rng.uniform(0, 0.1))
            raised = assert_works([fork(in_child) for _ in range(2)])
            trial.count(forks=2, raised=raised)


WORKS = [
    (fork_while_threads_compute, dict(threads=1)),
    (fork_while_threads_compute, dict(threads=4)),
    (fork_of_fork, dict(threads=2)),
    (fork_while_kernels_load, dict(most=10)),
    (fork_while_modules_load, {}),
]


@pytest.mark.parametrize(("work", "options"), WORKS)
def test_forked_children_work_at_any_moment(trial, work, options):
    run_children(trial, work, **options)


def kernel_folder():
    """Where the kernels of this run lie, by the rules of the README: the user's cache."""
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rnnkit" / DIGEST


@pytest.fixture
def cold_dropout(tmp_path):
    """A cache in which only the kernel of dropout is missing: the one that compiles soonest."""
    shutil.copytree(kernel_folder(), tmp_path / "rnnkit" / DIGEST, ignore=shutil.ignore_patterns(*DROPOUT))
    assert any(list(kernel_folder().rglob(pattern)) for pattern in DROPOUT), "there was nothing to leave out"
    return tmp_path


def fork_while_it_compiles(trial):
    """A thread compiles a kernel of the engine, the children need that one."""
    training = Problem("rnn_tanh", num_layers=2, dropout=0.5, seed=1)
    plain = training.twin(dropout=0.0)
    plain.backward(plain.forward().workspace)

    def train():
        training.backward(training.forward(seed=5).workspace)

    thread = threading.Thread(target=train)
    thread.start()
    pids = []
    while thread.is_alive() and len(pids) < 5:
        time.sleep(trial.rng.uniform(0, 0.4))
        pids.append(fork(train))
    raised = assert_works(pids)
    thread.join()
    trial.count(forks=len(pids), raised=raised, compiled=1)


def test_forked_children_work_while_a_kernel_compiles(trial, cold_dropout):
    for number in trial.rounds():
        folder = cold_dropout / str(number)
        shutil.copytree(cold_dropout / "rnnkit", folder / "rnnkit")
        run_child(trial, fork_while_it_compiles, environment={"NUMBA_CACHE_DIR": str(folder)})
        shutil.rmtree(folder)


def call_everything(seed):
    """What a worker of a pool does; the problem and its right results are made there."""
    rng = np.random.default_rng(seed)
    caller = Caller(*small_problem(rng))
    for call in (caller.infer, caller.plan_infer, caller.train, caller.step):
        call()
    return os.getpid()


def pool(trial, context):
    """A pool of workers, each of which makes problems and checks their results."""
    with context.Pool(2) as workers:
        found = workers.map(call_everything, trial.rng.integers(2**32, size=6), chunksize=1)
    assert os.getpid() not in found
    trial.count(forks=2, pool_calls=6)


def processes(trial, context, known):
    """Processes, while this one goes on; a fork inherits plans and workspaces that it can use."""
    seeds = [int(seed) for seed in trial.rng.integers(2**32, size=2)]
    running = [context.Process(target=call_everything, args=(seed,)) for seed in seeds]
    if context.get_start_method() == "fork":
        running += [context.Process(target=caller.all) for caller in known]
    for one in running:
        one.start()
    for caller in known:
        caller.infer()
    for one in running:
        one.join()
    assert {one.exitcode for one in running} == {0}
    trial.count(forks=len(running))


def make_processes(trial, method):
    """A pool before this process calls the engine; then processes and pools while it does."""
    context = multiprocessing.get_context(method)
    pool(trial, context)
    known = callers(trial.rng, 2)
    for number in trial.rounds():
        if number % 2:
            pool(trial, context)
        else:
            processes(trial, context, known)


@pytest.mark.share(2)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_pools_and_processes_work_with_every_start_method(trial, method):
    run_children(trial, make_processes, method=method, threads=2)
