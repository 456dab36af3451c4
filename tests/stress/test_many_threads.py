"""Many Python threads that call at once, on any number of the engine's threads, beside whatever else runs."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from pathlib import Path

import numba
import numpy as np
import pytest
from child import run_child, run_children
from oracle import assert_same, right
from work import Caller, callers, shared_problems

import rnnkit

PYTHON_THREADS = 16
BRIEFLY = 1.5  # seconds, where the time was spent on what the results are compared with


def in_threads(trial, function, count=PYTHON_THREADS):
    """Call `function(rng)` in all threads again and again until the time is spent; the first error is raised."""
    start, stop, calls = threading.Barrier(count), threading.Event(), [0] * count
    seeds, end = trial.rng.integers(2**32, size=count), time.monotonic() + max(trial.seconds_left, BRIEFLY)

    def run(number):
        rng = np.random.default_rng(seeds[number])
        start.wait()
        while calls[number] == 0 or (time.monotonic() < end and not stop.is_set()):
            function(rng)
            calls[number] += 1

    with ThreadPoolExecutor(count) as pool:
        runs = [pool.submit(run, number) for number in range(count)]
        for one in runs:
            if one.exception() is not None:
                stop.set()
        for one in runs:
            one.result()
    trial.count(threaded_calls=sum(calls), threads=count)


def call_anything(trial, change_threads=False, core=False):
    """Every thread calls every function; the results have the bits of calls alone."""
    if core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    known = callers(trial.rng, 5)

    def call(rng):
        if change_threads:
            numba.set_num_threads(int(rng.integers(1, numba.config.NUMBA_NUM_THREADS + 1)))
        known[rng.integers(len(known))].any(rng)

    in_threads(trial, call)


@pytest.mark.share(3)
def test_sixteen_threads_call_a_team_of_any_size(trial):
    first = int(trial.rng.integers(16))
    for number in trial.rounds():
        run_child(trial, call_anything, threads=1 + (first + number) % 16, most=8)


def test_threads_change_the_size_of_the_team(trial):
    """With few numbers to choose from, teams are shared for longer; with many they come and go."""
    for number in trial.rounds():
        run_child(trial, call_anything, change_threads=True, threads=(2, 8)[number % 2], most=8)


def stop_and_continue(pid, rng):
    """Stop the whole process for a moment, wherever its threads are."""
    time.sleep(rng.uniform(0.0, 0.2))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(rng.uniform(0.0, 0.05))
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("options", [dict(core=True), dict(meanwhile=stop_and_continue)], ids=["one core", "stopped"])
def test_threads_are_right_on_one_core_and_when_stopped(trial, options):
    run_children(trial, call_anything, threads=4, **options)


@pytest.fixture
def hogs():
    """Programs that take all cores for themselves."""
    count = len(os.sched_getaffinity(0)) + 1
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    yield
    for one in running:
        one.kill()
        one.wait()


def test_threads_call_beside_programs_that_take_all_cores(trial, hogs):
    run_children(trial, call_anything, threads=4)


@numba.njit(parallel=True)
def squares(values):
    """The user's own parallel code, which runs on Numba's threading layer."""
    total = 0.0
    for n in numba.prange(len(values)):
        total += values[n] ** 2
    return total


def call_beside_numba(trial, layer):
    """Some threads call the engine, one at a time runs the user's parallel loop (workqueue allows no more)."""
    values, alone = np.arange(100_000.0), threading.Lock()
    expected = (values**2).sum()
    assert np.isclose(squares(values), expected)
    assert numba.threading_layer() == layer
    known = callers(trial.rng, 4)

    def call(rng):
        wanted = int(rng.integers(1, numba.config.NUMBA_NUM_THREADS + 1))
        numba.set_num_threads(wanted)
        if rng.random() < 0.3:
            with alone:
                assert np.isclose(squares(values), expected)
        else:
            known[rng.integers(len(known))].any(rng)
        assert numba.get_num_threads() == wanted, "the number of threads is the user's"

    in_threads(trial, call)


TBB = find_library("tbb") or any(Path(sys.prefix, "lib").glob("libtbb.so.*"))
LAYERS = ["omp", "workqueue", pytest.param("tbb", marks=pytest.mark.skipif(not TBB, reason="TBB is not installed"))]


@pytest.mark.parametrize("layer", LAYERS)
def test_threads_call_beside_the_users_own_parallel_code(trial, layer):
    environment = {"NUMBA_THREADING_LAYER": layer}
    if layer == "tbb":  # pip leaves the library where the loader does not look
        environment["LD_LIBRARY_PATH"] = f"{sys.prefix}/lib"
    run_children(trial, call_beside_numba, layer=layer, threads=4, environment=environment)


class Shared:
    """A workspace that several threads reuse at once, each for an input of its own."""

    def __init__(self, problem, rng):
        twins = [problem.twin(seed=int(rng.integers(2**32))) for _ in range(4)]
        self.known = [(twin, right(twin)) for twin in twins]
        self.workspace = problem.forward().workspace
        self.refused = 0

    def train(self, rng):
        """The results are right, or the call says that the workspace is another's by now."""
        problem, expected = self.known[rng.integers(len(self.known))]
        try:
            result = problem.forward(workspace=self.workspace)
            self.workspace = result.workspace
            states = rnnkit.Infer(None, *result[1:3])
            gradients = problem.backward(result.workspace)
        except rnnkit.WorkspaceError:
            self.refused += 1
            return
        assert_same(gradients, expected.backward)
        assert_same(states, expected.forward, ("hy", "cy"))


def share_a_workspace(trial):
    rng = trial.rng
    shared = [Shared(problem, rng) for problem, _ in shared_problems(rng, 3)]
    in_threads(trial, lambda rng: shared[rng.integers(len(shared))].train(rng), 4)
    trial.count(refused=sum(one.refused for one in shared))


def read_a_workspace(trial):
    """backward does not change what it reads: any number of threads may call it on one workspace."""
    known = [(problem, expected, problem.forward().workspace) for problem, expected in shared_problems(trial.rng, 5)]

    def call(rng):
        problem, expected, workspace = known[rng.integers(len(known))]
        assert_same(problem.backward(workspace), expected.backward)

    in_threads(trial, call)


def start_threads(trial):
    """Each call comes from a thread of its own, the first ones at once: they load the kernels."""
    known = None
    for _ in trial.rounds():
        known = known or [Caller(*one) for one in shared_problems(trial.rng, 3)]
        rngs = [np.random.default_rng(seed) for seed in trial.rng.integers(2**32, size=PYTHON_THREADS)]
        with ThreadPoolExecutor(PYTHON_THREADS) as pool:
            runs = [pool.submit(known[rng.integers(len(known))].any, rng) for rng in rngs]
        for one in runs:
            one.result()
        trial.count(threads=PYTHON_THREADS, threaded_calls=PYTHON_THREADS)


WORKS = [(share_a_workspace, 1), (share_a_workspace, 4), (read_a_workspace, 4), (start_threads, 2)]


@pytest.mark.parametrize(("work", "threads"), WORKS)
def test_threads_that_share_a_workspace_or_end_are_right(trial, work, threads):
    run_children(trial, work, threads=threads)
