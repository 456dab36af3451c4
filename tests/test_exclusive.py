"""Several threads on one workspace, exceptions at any moment: right results or an error, and nothing stays taken."""

import copy
import gc
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from messages import says
from problems import Problem
from tolerances import GRADIENTS, OUTPUTS, assert_same_results

import rnnkit
from rnnkit.call.forking import new_call
from rnnkit.call.memory import Memory
from rnnkit.cpu import infer, route
from rnnkit_kernels.machine import thread_pool

pytestmark = pytest.mark.cores(2)

PROBLEM = Problem(mode="lstm", input_size=33, hidden_size=65, num_layers=2, seq_len=30, batch_size=9, dtype="float32")


class Interruption(Exception):
    pass


def train(problem, workspace=None):
    result = problem.forward(workspace=workspace)
    return result, problem.backward(result.workspace)


def test_threads_that_use_one_workspace_get_right_gradients_or_an_error():
    problems = [PROBLEM.twin(seed=seed) for seed in range(4)]
    expected = [train(problem) for problem in problems]
    workspace = expected[0][0].workspace

    def work(number):
        right = 0
        for _ in range(60):
            try:
                result = problems[number].forward(workspace=workspace)
                gradients = problems[number].backward(result.workspace)
            except rnnkit.WorkspaceError:
                continue
            assert_same_results(gradients, expected[number][1], GRADIENTS)
            right += 1
        return right

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) > 0


def test_forward_refuses_a_workspace_while_a_call_is_at_work_in_it(monkeypatch):
    """While backward is in its first kernel another thread asks for the memory; then it is free again."""
    result, expected = train(PROBLEM)
    entered, go_on = threading.Event(), threading.Event()
    run = thread_pool.run

    def held(*arguments):
        entered.set()
        assert go_on.wait(60)
        return run(*arguments)

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(thread_pool, "run", held)
        backward = pool.submit(PROBLEM.backward, result.workspace)
        assert entered.wait(60)
        monkeypatch.setattr(thread_pool, "run", run)
        with pytest.raises(rnnkit.WorkspaceError, match=says("forward: workspace", "another call")):
            PROBLEM.forward(workspace=result.workspace)
        assert_same_results(PROBLEM.backward(result.workspace), expected, GRADIENTS)  # reading it twice is no trouble
        go_on.set()
        assert_same_results(backward.result(), expected, GRADIENTS)
    assert_same_results(PROBLEM.forward(workspace=result.workspace), PROBLEM.infer(), OUTPUTS)


def test_what_calls_in_the_middle_of_a_call_has_lists_of_its_own(monkeypatch):
    """As a signal's handler may: both batches of a size, and their padding is cleared by the lists of their own."""
    sizes = dict(mode="gru", input_size=17, hidden_size=33, seq_len=90, batch_size=4, dtype="float32")
    problems = [Problem(**sizes, seed=seed) for seed in range(2)]
    batches = [(problems[0].x, (90, 3, 0, 50)), (problems[1].x, (1, 90, 90, 2))]
    monkeypatch.setattr(route, "_STEPWISE_WORK", 1 << 19)
    plan, ready_to_clear, within = rnnkit.prepare(problems[0].desc, problems[0].w), infer.prepare_clearing, []
    expected = [rnnkit.infer(problems[0].desc, problems[0].w, x, lengths=lengths).y for x, lengths in batches]

    def interrupted(*arguments, **options):
        monkeypatch.setattr(infer, "prepare_clearing", ready_to_clear)
        within.append(plan.infer(batches[1][0], lengths=batches[1][1]).y)
        return ready_to_clear(*arguments, **options)

    for _ in range(3):
        monkeypatch.setattr(infer, "prepare_clearing", interrupted)
        found = plan.infer(batches[0][0], lengths=batches[0][1]).y
        assert np.array_equal(found, expected[0])
    assert within and all(np.array_equal(y, expected[1]) for y in within)


def test_a_copy_has_no_calls_at_work():
    result, expected = train(PROBLEM)
    for taken in (result.workspace.memory.calls, result.workspace.memory.borrowers):
        taken.add(new_call())
    copied = copy.deepcopy(result.workspace)
    assert not copied.memory.calls and not copied.memory.borrowers
    assert_same_results(PROBLEM.backward(copied), expected, GRADIENTS)
    assert_same_results(PROBLEM.forward(workspace=copied), PROBLEM.infer(), OUTPUTS)


@pytest.fixture
def alarm():
    """A function that has an exception raised in so many seconds, wherever the main thread is then."""

    def interrupt(signum, frame):
        raise Interruption

    # Python drops what is raised within a callback of its garbage collector, and Hypothesis has one.
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.callbacks[:] = callbacks


def assert_nothing_taken(workspace, plan):
    assert not thread_pool._callers
    assert not workspace.memory.calls and not workspace.memory.borrowers
    assert not plan._network._memory.borrowers


def test_an_exception_at_any_moment_leaves_nothing_taken(monkeypatch, alarm):
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: 2)
    for constant in ("_WAKE_THRESHOLD", "SINGLE_THREAD_WORK"):
        monkeypatch.setattr(thread_pool, constant, 0)
    rng, problem = random.Random(0), PROBLEM.twin(hidden_size=5, input_size=3, seq_len=3)
    result, gradients = train(problem)
    workspace, plan = result.workspace, rnnkit.prepare(problem.desc, problem.w)
    plan.infer(problem.x)  # what is loaded first would take longer than any alarm
    interrupted = 0
    for _ in range(600):
        latest = workspace
        with pytest.raises(Interruption):
            alarm(rng.uniform(1e-6, 3e-4))
            while True:
                latest = problem.forward(workspace=workspace).workspace
                problem.backward(latest)
                plan.infer(problem.x)
        interrupted += 1
        assert_nothing_taken(latest, plan)
    assert interrupted == 600
    gc.collect()
    result, found = train(problem, workspace)
    assert_same_results(result, problem.infer(), OUTPUTS)
    assert_same_results(found, gradients, GRADIENTS)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Memory, "renew"), (Memory, "read"), (Memory, "borrow"), (thread_pool, "_enter"),
     (thread_pool._ThreadPool, "run")],
)
def test_an_exception_right_after_what_takes_leaves_nothing_taken(monkeypatch, owner, name):
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: 2)
    monkeypatch.setattr(thread_pool, "_WAKE_THRESHOLD", 0)
    monkeypatch.setattr(thread_pool, "SINGLE_THREAD_WORK", 0)
    result, gradients = train(PROBLEM)
    workspace, plan, take = result.workspace, rnnkit.prepare(PROBLEM.desc, PROBLEM.w), getattr(owner, name)

    def interrupted(*arguments):
        take(*arguments)
        raise Interruption

    for call in (lambda: PROBLEM.backward(workspace), lambda: plan.infer(PROBLEM.x), lambda: train(PROBLEM, workspace)):
        with monkeypatch.context() as patch, suppress(Interruption):
            patch.setattr(owner, name, interrupted)
            call()
        assert_nothing_taken(workspace, plan)
    result, found = train(PROBLEM, workspace)
    assert_same_results(found, gradients, GRADIENTS)


@pytest.mark.parametrize("trouble", [RuntimeError("can't start new thread"), Interruption()])
def test_a_thread_that_does_not_start(monkeypatch, trouble):
    """Where the system gives no more threads, those that came do the work; an exception leaves none behind."""
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: 3)
    monkeypatch.setattr(thread_pool, "_WAKE_THRESHOLD", 0)
    monkeypatch.setattr(thread_pool, "SINGLE_THREAD_WORK", 0)
    expected, started, start = PROBLEM.infer(), [], thread_pool._Worker.start
    thread_pool._pool.shutdown()

    def once(worker):
        if started:
            raise trouble
        started.append(worker)
        start(worker)

    thread_pool._pool = None
    with monkeypatch.context() as patch:
        patch.setattr(thread_pool._Worker, "start", once)
        if isinstance(trouble, RuntimeError):
            assert_same_results(PROBLEM.infer(), expected, OUTPUTS)
            assert thread_pool._pool.workers == started
            thread_pool._pool.shutdown()
        else:
            with pytest.raises(Interruption):
                PROBLEM.infer()
            started[0].join(60)
            assert not started[0].is_alive()
    assert not thread_pool._callers
    thread_pool._pool = None
    assert_same_results(PROBLEM.infer(), expected, OUTPUTS)
    assert len(thread_pool._pool.workers) == 2


@pytest.mark.parametrize("call", ["forward", "backward", "infer"])
def test_an_interrupt_is_looked_at_between_the_parts_of_a_long_call(request, monkeypatch, call):
    """The workspace is void then, not wrong; the next call works."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    monkeypatch.setattr(route, "_CALL_WORK", 1)
    monkeypatch.setattr(route, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(route, "_STEPWISE_WORK", 0)
    problem = Problem(mode="gru", seq_len=3000, batch_size=5, dtype="float32")
    result, gradients = train(problem)
    expected = problem.infer()
    calls, run = [], thread_pool.run

    def interrupting(kernel, *arguments):
        run(kernel, *arguments)
        calls.append(kernel)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(thread_pool, "run", interrupting)
    with pytest.raises(KeyboardInterrupt):
        {
            "forward": lambda: problem.forward(workspace=result.workspace),
            "backward": lambda: problem.backward(result.workspace),
            "infer": problem.infer,
        }[call]()
    assert len(calls) == 3
    monkeypatch.setattr(thread_pool, "run", run)
    if call == "forward":
        with pytest.raises(rnnkit.WorkspaceError, match=says("backward: workspace", "older")):
            problem.backward(result.workspace)
        result = problem.forward(workspace=result.workspace)
    assert_same_results(problem.backward(result.workspace), gradients, GRADIENTS)
    assert_same_results(problem.infer(), expected, OUTPUTS)
    assert np.array_equal(result.y, expected.y)
