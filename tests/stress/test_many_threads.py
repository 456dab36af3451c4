"""Many Python threads that call at once, on any number of the engine's threads, beside whatever else runs."""

import os
import signal
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
from work import callers

PYTHON_THREADS = 16
CALLS = 20  # of a thread


def in_threads(trial, function, count=PYTHON_THREADS):
    """Call `function(rng)` in new threads at once, a few times in each, again and again until the time is spent."""

    def run(seed):
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(CALLS):
            function(rng)

    for _ in trial.rounds():
        start = threading.Barrier(count)
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(run, trial.rng.integers(2**32, size=count)))
        trial.count(threaded_calls=CALLS * count, threads=count)


def call_anything(trial, core=False):
    """Every thread calls every function and changes the number of engine threads; results have the bits of calls alone.

    With few numbers to choose from, teams are shared for longer; with many they come and go.
    """
    if core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    known, changes = callers(trial.rng, 5), trial.rng.random() < 0.5

    def call(rng):
        if changes:
            numba.set_num_threads(int(rng.integers(1, numba.config.NUMBA_NUM_THREADS + 1)))
        known[rng.integers(len(known))].any(rng)

    in_threads(trial, call)


@pytest.mark.share(4)
def test_sixteen_threads_call_a_team_of_any_size(trial):
    first = int(trial.rng.integers(16))
    for number in trial.rounds():
        run_child(trial, call_anything, threads=1 + (first + number) % 16, most=8)


def stop_and_continue(pid, rng):
    """Stop the whole process for a moment, wherever its threads are."""
    time.sleep(rng.uniform(0.0, 0.2))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(rng.uniform(0.0, 0.05))
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("options", [dict(core=True), dict(meanwhile=stop_and_continue)], ids=["one core", "stopped"])
def test_threads_are_right_on_one_core_and_when_stopped(trial, options):
    run_children(trial, call_anything, threads=4, **options)


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
