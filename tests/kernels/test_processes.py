"""The same bits at any number of threads, from several Python threads and in a forked child. Nobody waits for a lock
that nobody opens: a child of a process with threads, a call from a signal's handler."""

import os
import subprocess
import sys
from functools import cache

import pytest
from combinations import nightly
from problems import CELLS
from repository import SUPPORT

DIGEST = SUPPORT / "digest.py"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
HANG = 1800  # seconds: a child takes 10 to 60; on a machine busy with ten times as much it is slow, but does not hang


def run(*arguments, **environment):
    """What a Python process prints; one that fails or hangs raises here."""
    options = dict(env=os.environ | environment, capture_output=True, text=True, timeout=HANG, check=False)
    done = subprocess.run([sys.executable, *arguments], **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@cache
def expected(*cells):
    found = run(DIGEST, "plain", *cells, NUMBA_NUM_THREADS="1")
    assert len(set(found)) == len(found), "two problems have one digest: they can not tell results apart"
    return found


SOME = "tanh", "lstm-projected-clipped", "gru"
WAYS = [("threads", "2", SOME), ("fork", "2", SOME), nightly("plain", "2", CELLS)]
WAYS += [nightly(how, threads, CELLS) for threads in ("2", "1") for how in ("threads", "fork")]


@pytest.mark.cores(2)
@pytest.mark.parametrize(("how", "threads", "cells"), WAYS)
def test_bits_do_not_depend_on_threads_and_processes(how, threads, cells):
    assert run(DIGEST, how, *cells, NUMBA_NUM_THREADS=threads) == expected(*cells)


ANEW = """
import sys
import numpy as np
import rnnkit

desc = rnnkit.RNNDescriptor("lstm", 3, 5)
x, zeros = np.ones((1, 2, 3), np.float32), np.zeros((1, 2, 5), np.float32)
plan = rnnkit.prepare(desc, rnnkit.init_weights(desc, seed=0))
expected = plan.infer(x).y[0]
for name in [name for name in sys.modules if name.startswith("rnnkit")]:
    del sys.modules[name]
assert __import__("rnnkit") is not rnnkit
assert np.array_equal(plan.step(x[0], zeros, zeros).y, expected)  # a kernel that is compiled, or loaded, only now
"""


def test_kernels_find_their_tiles_after_a_second_import():
    """An absent tile function ends the process, hence one of its own."""
    assert run("-c", ANEW) == []


FORK = """
import os, signal, sys, threading
import numpy as np
import rnnkit

started = threading.Event()
net, x = rnnkit.RNN(3, 5, bidirectional={two_ways}, seed=0), np.ones((2, 2, 3), np.float32)


def infer():
    return net.infer(x).y

{watch}
thread = threading.Thread(target=infer)
thread.start()
started.wait()
child = os.fork()
if child == 0:
    signal.alarm(300)  # ends a child that hangs
    os._exit(0 if np.isfinite(infer()).all() else 1)
thread.join()
assert os.waitpid(child, 0)[1] == 0, "the child hung or failed"
"""
# The thread is in the middle of importing the kernels.
IMPORTING = """
import importlib.abc

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "rnnkit_kernels.loop" and not started.is_set():
            started.set()
            threading.Event().wait(1)

sys.meta_path.insert(0, Slow())
"""
# The thread is in the middle of compiling them.
COMPILING = """
from numba.core import event

class Listener(event.Listener):
    def on_start(self, found):
        if not started.is_set():
            started.set()
            threading.Event().wait(1)

    def on_end(self, found):
        pass

import rnnkit.cpu.engine
event.register("numba:compile", Listener())
"""
# The thread is in the middle of taking a plan's memory.
TAKING = """
plan = net.prepare()
infer = lambda: plan.infer(x).y

class Slow(set):
    def add(self, call):
        super().add(call)
        if not started.is_set():
            started.set()
            threading.Event().wait(1)

plan.packed._memory.borrowers = Slow()
"""
# As from a handler that runs in the middle of taking a plan's memory, and then the team.
WITHIN = """
import numpy as np
import rnnkit
from rnnkit_kernels.machine import thread_pool

net, x = rnnkit.RNN(3, 5, bidirectional=True, seed=0), np.ones((2, 2, 3), np.float32)
plan, found = net.prepare(), []
thread_pool.SINGLE_THREAD_WORK, thread_pool.wanted_size = 0, lambda: 2

class Again(set):
    def add(self, call):
        super().add(call)
        found.append(plan.infer(x).y)

expected = plan.infer(x).y
plan.packed._memory.borrowers = Again()
assert np.array_equal(plan.infer(x).y, expected)
plan.packed._memory.borrowers, thread_pool._callers = set(), Again()
assert np.array_equal(plan.infer(x).y, expected)
assert len(found) == 2 and all(np.array_equal(y, expected) for y in found)
"""
# Threads are in the middle of a step of a stream, of a forward in a workspace and of a call of a plan.
AT_WORK = """
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import rnnkit
from rnnkit.call import forking
from rnnkit.cpu import engine, infer

net, x = rnnkit.LSTM(3, 5, bidirectional=True, seed=0), np.ones((300, 2, 3), np.float32)
plan, workspace, streams = net.prepare(), net.forward(x).workspace, rnnkit.LSTM(3, 5, seed=0).prepare().stream(2)
calls = [lambda: streams.step(x[0]), lambda: net.forward(x, workspace=workspace), lambda: plan.infer(x)]
places = [(streams._network, "step"), (engine, "flat"), (infer, "forward_arrays")]
inside, go_on = threading.Semaphore(0), threading.Event()

def held(function):
    def hold(*arguments, **named):
        inside.release()
        go_on.wait()
        return function(*arguments, **named)
    return hold

def refused(call):
    try:
        call()
    except rnnkit.WorkspaceError:
        return True
    return False

threads = [threading.Thread(target=call, daemon=True) for call in calls]  # what fails ends all
for thread, (owner, name) in zip(threads, places):
    own = getattr(owner, name)
    setattr(owner, name, held(own))
    thread.start()
    inside.acquire()
    setattr(owner, name, own)
memory = plan.packed._memory
assert refused(calls[0]) and refused(calls[1]) and memory.borrow(forking.new_call()) is not memory.arena
token = forking.new_call()  # of a call in the middle of which this thread forks
child = os.fork()
if child == 0:
    signal.alarm(300)
    workspace.memory.calls.add(token)
    # A thread that is new there may have the number of one that was at work in the parent.
    with ThreadPoolExecutor(1) as pool:
        own = pool.submit(refused, calls[1]).result() and refused(calls[1])
        workspace.memory.calls.discard(token)
        free = not any(pool.map(refused, calls)) and not any(map(refused, calls))
        free = free and memory.borrow(token) is memory.arena
    os._exit(0 if own and free else 1)
assert os.waitpid(child, 0)[1] == 0, "the child is refused"
assert refused(calls[0]) and refused(calls[1])
go_on.set()
for thread in threads:
    thread.join()
assert not any(map(refused, calls))
"""
# Threads of the parent have the team and its lock.
FORGETS = """
import os, signal
from rnnkit.call import forking
from rnnkit_kernels.machine import forks, imports, thread_pool

seen = []

@forks.after_fork_in_child
def note():
    seen.append(imports.importing._is_owned() and forking.entering._is_owned())

lock = thread_pool._entering
thread_pool._pool, thread_pool._callers = object(), {object()}
child = os.fork()
if child == 0:
    signal.alarm(300)
    anew = thread_pool._pool is None and not thread_pool._callers and thread_pool._entering is not lock
    os._exit(0 if seen == [True] and anew else 1)
assert os.waitpid(child, 0)[1] == 0, "the child has what its parent's threads had"
assert seen == [] and thread_pool._pool is not None
"""


@needs_fork
@pytest.mark.parametrize("watch", [IMPORTING, COMPILING, TAKING], ids=["importing", "compiling", "taking"])
def test_child_forked_in_the_middle_of_work_computes(tmp_path, watch):
    compiles = watch is COMPILING  # of one direction there is less to compile
    folder = {"NUMBA_CACHE_DIR": str(tmp_path)} if compiles else {}
    run("-c", FORK.format(watch=watch, two_ways=not compiles), **folder)


@needs_fork
@pytest.mark.parametrize("program", [AT_WORK, FORGETS], ids=["workspaces", "threads"])
def test_child_forgets_the_calls_of_its_parents_threads(program):
    run("-c", program)


def test_signal_handler_may_call_the_engine_during_a_call():
    run("-c", WITHIN)
