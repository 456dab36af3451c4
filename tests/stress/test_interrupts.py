"""Exceptions from signal handlers, at any instruction: afterwards nothing is left taken and every result is right."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from child import run_children
from oracle import assert_same
from work import callers, threads_that_go_on

import rnnkit

INTERRUPTS = 400  # a round
PATIENCE = 20.0  # seconds
# Calls so brief that most of their instructions are Python's, and yet long enough for the team.
BRIEF = (
    dict(hidden_size=64, input_size=16, seq_len=3, batch_size=8),
    dict(hidden_size=64, input_size=64, seq_len=2, batch_size=16),
    dict(hidden_size=48, input_size=5, seq_len=3, batch_size=8, bidirectional=True),
    dict(hidden_size=48, input_size=16, seq_len=3, batch_size=8, num_layers=2),
    dict(hidden_size=5, input_size=5, seq_len=3, batch_size=1030),  # of which checkpoints make several segments
)


class Interrupted(BaseException):
    """What the handler raises, as KeyboardInterrupt is raised."""


def interrupt(number, frame):
    raise Interrupted


def survives(call, seconds):
    """Whether the call was interrupted after these seconds, wherever the code was by then; it raises nothing else."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return True
    return False


def without_interrupts(call, *arguments):
    """The result of what may not be interrupted: one late signal may strike before it is ignored."""
    with suppress(Interrupted):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    found = call(*arguments)
    signal.signal(signal.SIGALRM, interrupt)
    return found


def helpers_time():
    """Seconds on the CPU of all threads but this one."""
    own = threading.get_native_id()
    nanoseconds = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # one that has ended meanwhile
            if int(task.name) != own:
                nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def assert_helpers_take_part():
    """The team's other threads still work for a large call: nobody has left the team taken."""
    if os.environ["NUMBA_NUM_THREADS"] == "1":
        return
    net, x = rnnkit.LSTM(64, 256, seed=0), np.ones((20, 32, 64), np.float32)
    before, end = helpers_time(), time.monotonic() + PATIENCE
    while helpers_time() - before < 0.01 and time.monotonic() < end:
        net.infer(x)
    assert helpers_time() - before >= 0.01, f"no worker has worked in {PATIENCE} s of large calls"


class Trained:
    """A workspace that goes from one interrupted call to the next."""

    def __init__(self, caller):
        self.caller, self.problem = caller, caller.problem
        self.workspace = self.problem.forward().workspace

    def train(self, checkpoint_steps=None):
        forward = self.problem.forward(workspace=self.workspace, checkpoint_steps=checkpoint_steps)
        self.workspace = forward.workspace
        self.problem.backward(self.workspace)

    def train_in_segments(self):
        self.train(checkpoint_steps=1)

    def assert_void_or_right(self):
        """What an interrupted forward has left is refused, or gives the right gradients."""
        try:
            found = self.problem.backward(self.workspace)
        except rnnkit.WorkspaceError:
            self.renew()
            found = self.problem.backward(self.workspace)
        assert_same(found, self.caller.expected.backward)

    def renew(self):
        """The next forward, in the same memory where that is allowed."""
        try:
            self.workspace = self.problem.forward(workspace=self.workspace).workspace
        except rnnkit.WorkspaceError:
            self.workspace = self.problem.forward().workspace


def interrupt_calls(trial, beside):
    """Interrupts at random moments of all calls, other threads' calls `beside` them; then everything is looked at."""
    signal.signal(signal.SIGALRM, interrupt)
    known = callers(trial.rng, 3, BRIEF)
    for caller in known:
        caller.all()
    assert_helpers_take_part()
    trained = [Trained(caller) for caller in known]
    durations = [[_duration(call) for call in _calls(*pair)] for pair in zip(known, trained, strict=True)]
    for _ in trial.rounds():
        hits = 0
        with threads_that_go_on(lambda rng: known[rng.integers(len(known))].any(rng), beside):
            while hits < INTERRUPTS:
                number = int(trial.rng.integers(len(known)))
                calls = _calls(known[number], trained[number])
                which = int(trial.rng.integers(len(calls)))
                moment = 1e-6 + trial.rng.uniform(0, 1.2 * durations[number][which])
                hits += survives(calls[which], moment)
                if trial.rng.random() < 0.2:
                    without_interrupts(trained[number].assert_void_or_right)
        trial.count(interrupts=hits)
        for caller, one in zip(known, trained, strict=True):
            without_interrupts(caller.all)
            without_interrupts(one.assert_void_or_right)
        without_interrupts(assert_helpers_take_part)


def _calls(caller, trained):
    own = [trained.train, trained.train_in_segments]
    return [caller.problem.infer, caller.plan_infer, caller.prepare, caller.step, *own]


def _duration(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.mark.share(2)
@pytest.mark.parametrize(("threads", "beside"), [(1, 0), (2, 0), (2, 3)])
def test_interrupted_calls_leave_all_right(trial, threads, beside):
    run_children(trial, interrupt_calls, threads=threads, beside=beside)


LONG = 2.0  # seconds that a call takes at least
TRIES = 5  # another program may have the cores when the signal comes
PART = 0.25  # of the rest of the call, within which an interrupt has to come out of it


def part_that_is_waited(call, rng):
    """The time from a signal to its exception, as a part of that for which the call would have gone on."""
    whole = _duration(call)
    moment = whole * rng.uniform(0.05, 0.4)
    waited = _duration(lambda: survives(call, moment)) - moment
    return waited / (whole - moment)


def interrupt_long_calls(trial):
    signal.signal(signal.SIGALRM, interrupt)
    net = rnnkit.LSTM(8, 700, seed=0)
    x = trial.rng.standard_normal((200, 4, 8), np.float32)
    net.infer(x)
    x = np.resize(x, (int(200 * LONG / _duration(lambda: net.infer(x))), 4, 8))
    workspace, dhy = net.forward(x).workspace, np.ones((1, 4, 700), np.float32)
    calls = lambda: net.infer(x), lambda: net.forward(x), lambda: net.backward(workspace, dhy=dhy)
    for number, call in enumerate(calls):
        call()  # compiles
        parts = (part_that_is_waited(call, trial.rng) for _ in range(TRIES))
        assert any(part <= PART for part in parts), f"call {number} went on for too long after each signal"
        trial.count(interrupts=1)


def test_long_call_ends_soon_after_a_signal(trial):
    run_children(trial, interrupt_long_calls, threads=2)
