"""Exceptions from signal handlers, at any instruction: afterwards nothing is left taken and every result is right."""

import os
import signal
import threading
import time
import tracemalloc
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from child import run_children
from oracle import assert_same
from work import callers, threads_that_go_on

import rnnkit

INTERRUPTS = 400  # a round
PATIENCE = 20.0  # seconds
SLACK = 1 << 12  # bytes that Python and NumPy use by the way
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


@contextmanager
def interrupted_after(seconds):
    """Raise Interrupted from a signal's handler after these seconds, wherever the code is by then, or never."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def survives(call, seconds):
    """Whether the call was interrupted; it raises nothing else."""
    try:
        with interrupted_after(seconds):
            call()
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


def allocated_by(call):
    """Bytes that NumPy allocates at most during a call, beside what is there."""
    call()
    tracemalloc.start()
    call()
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def assert_memory_is_used_again(old, new, what):
    """The call on an old object allocates no more than the same on a new one, whose memory nobody has left taken."""
    assert (found := allocated_by(old)) <= (wanted := allocated_by(new)) + SLACK, f"{what}: {found} bytes, not {wanted}"


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


def interrupt_calls(trial):
    """Interrupts at random moments of all calls, then everything is looked at."""
    signal.signal(signal.SIGALRM, interrupt)
    known = callers(trial.rng, 3, BRIEF)
    for caller in known:
        caller.all()
    assert_helpers_take_part()
    trained = [Trained(caller) for caller in known]
    durations = [[_duration(call) for call in _calls(*pair)] for pair in zip(known, trained, strict=True)]
    for _ in trial.rounds():
        hits = 0
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
            without_interrupts(assert_unharmed, caller, one)
        without_interrupts(assert_helpers_take_part)


def _calls(caller, trained):
    own = [trained.train, trained.train_in_segments]
    return [caller.problem.infer, caller.plan_infer, caller.prepare, caller.step, *own]


def _duration(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def assert_unharmed(caller, trained):
    """All results are right, and no memory stays lent."""
    caller.all()
    trained.assert_void_or_right()
    problem, fresh = caller.problem, rnnkit.prepare(caller.problem.desc, caller.problem.w)
    given = dict(x=problem.x, hx=problem.hx, cx=problem.cx, lengths=problem.lengths)
    used = caller.plan
    assert_memory_is_used_again(lambda: used.infer(**given), lambda: fresh.infer(**given), f"a plan of {problem}")
    old = trained.workspace
    new = problem.forward(checkpoint_steps=old.checkpoint_steps).workspace
    assert_memory_is_used_again(
        lambda: problem.backward(old), lambda: problem.backward(new), f"backward on a workspace of {problem}"
    )


@pytest.mark.share(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_interrupted_calls_leave_all_right(trial, threads):
    run_children(trial, interrupt_calls, threads=threads)


def interrupt_beside_threads(trial):
    """The main thread is interrupted while others call, too: their results stay right, their turns come."""
    signal.signal(signal.SIGALRM, interrupt)
    known = callers(trial.rng, 3, BRIEF)
    for caller in known:
        caller.all()
    with threads_that_go_on(lambda rng: known[rng.integers(len(known))].any(rng), 3):
        for _ in trial.rounds():
            hits = 0
            while hits < INTERRUPTS // 4:
                caller = known[trial.rng.integers(len(known))]
                hits += survives(caller.problem.infer, trial.rng.uniform(1e-6, 0.002))
                hits += survives(caller.plan_infer, trial.rng.uniform(1e-6, 0.002))
            trial.count(interrupts=hits)
    without_interrupts(assert_helpers_take_part)


def test_interrupts_leave_calls_of_other_threads_right(trial):
    run_children(trial, interrupt_beside_threads, threads=2)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
LONG = 2.0  # seconds that a call takes at least
TRIES = 5  # another program may have the cores when the signal comes
PART = 0.25  # of the rest of the call, within which an interrupt has to come out of it


def long_calls(rng):
    """Calls of infer, forward and backward that take seconds; the length is found by trying."""
    net = rnnkit.LSTM(8, 700, seed=0)
    x = rng.standard_normal((200, 4, 8), np.float32)
    net.infer(x)
    steps = int(200 * LONG / _duration(lambda: net.infer(x)))
    x = np.resize(x, (steps, 4, 8))
    workspace = net.forward(x).workspace
    dhy = np.ones((1, 4, 700), np.float32)
    return {
        "infer": lambda: net.infer(x), "forward": lambda: net.forward(x),
        "backward": lambda: net.backward(workspace, dhy=dhy),
    }  # fmt: skip


def interrupt_long_calls(trial):
    """The time from a signal to its exception, in calls that would go on for seconds."""
    sent, raised = [], []

    def send(number):
        sent.append(time.perf_counter())
        os.kill(os.getpid(), number)

    def handler(number, frame):
        raised.append(time.perf_counter())
        raise Interrupted

    for number in SIGNALS:
        signal.signal(number, handler)

    def wait(call, moment):
        """Seconds from a signal, sent at this moment of the call, to its exception."""
        timer = threading.Timer(moment, send, (SIGNALS[trial.rng.integers(len(SIGNALS))],))
        timer.start()
        with pytest.raises(Interrupted):
            call()
        timer.join()
        trial.count(interrupts=1)
        return raised[-1] - sent[-1]

    for name, call in long_calls(trial.rng).items():
        call()  # compiles
        quick = whole = _duration(call)
        least = np.inf
        for _ in range(TRIES):
            moment = quick * trial.rng.uniform(0.05, 0.4)
            waited = wait(call, moment)
            if waited > PART * (whole - moment):  # what took the cores from it may have come after it was timed
                whole = max(whole, _duration(call))
            least = min(least, waited / (whole - moment))
            if least <= PART:
                break
        assert least <= PART, f"{name} of {whole:.1f} s went on for {least:.0%} of the rest of it after a signal"


def test_long_call_ends_soon_after_a_signal(trial):
    run_children(trial, interrupt_long_calls, threads=2)
