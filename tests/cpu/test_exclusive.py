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
from messages import raises
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


@pytest.fixture
def threads(monkeypatch):
    """Call it with the number of threads that calls of any size are to have."""

    def of_number(number):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda: number)
        for constant in ("WAKE_THRESHOLD", "SINGLE_THREAD_WORK"):
            monkeypatch.setattr(thread_pool, constant, 0)

    return of_number


def test_threads_on_one_workspace_get_right_gradients_or_error():
    problems = [PROBLEM.twin(seed=seed) for seed in range(4)]
    expected = [train(problem) for problem in problems]
    workspace = expected[0][0].workspace

    def work(number):
        right = 0
        for _ in range(60):
            with suppress(rnnkit.WorkspaceError):
                _, gradients = train(problems[number], workspace)
                assert_same_results(gradients, expected[number][1], GRADIENTS)
                right += 1
        return right

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) > 0


def test_forward_refuses_a_workspace_in_use(monkeypatch):
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
        with raises(rnnkit.WorkspaceError, "forward: workspace | another call"):
            PROBLEM.forward(workspace=result.workspace)
        assert_same_results(PROBLEM.backward(result.workspace), expected, GRADIENTS)  # reading it twice is no trouble
        go_on.set()
        assert_same_results(backward.result(), expected, GRADIENTS)
    assert_same_results(PROBLEM.forward(workspace=result.workspace), PROBLEM.infer(), OUTPUTS)


def test_reentrant_infer_clears_padding_by_its_own_lists(monkeypatch):
    """A signal's handler may call in the middle of a call, with a batch of the same size."""
    sizes = dict(mode="gru", input_size=17, hidden_size=33, seq_len=90, batch_size=4, dtype="float32")
    outer, inner = Problem(**sizes, lengths=(90, 3, 0, 50)), Problem(**sizes, seed=1, lengths=(1, 90, 90, 2))
    monkeypatch.setattr(route, "_STEPWISE_WORK", 1 << 19)
    plan, ready_to_clear, within = rnnkit.prepare(outer.desc, outer.w), infer.prepare_clearing, []
    expected = [rnnkit.infer(outer.desc, outer.w, one.x, lengths=one.lengths).y for one in (outer, inner)]

    def interrupted(*arguments, **options):
        monkeypatch.setattr(infer, "prepare_clearing", ready_to_clear)
        within.append(plan.infer(inner.x, lengths=inner.lengths).y)
        return ready_to_clear(*arguments, **options)

    for _ in range(3):
        monkeypatch.setattr(infer, "prepare_clearing", interrupted)
        assert np.array_equal(plan.infer(outer.x, lengths=outer.lengths).y, expected[0])
    assert within and all(np.array_equal(y, expected[1]) for y in within)


def test_copied_workspace_has_no_calls_in_flight():
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
    assert not plan.packed._memory.borrowers


def test_exception_at_any_moment_releases_every_resource(threads, alarm):
    threads(2)
    rng, problem = random.Random(0), PROBLEM.twin(hidden_size=5, input_size=3, seq_len=3)
    result, gradients = train(problem)
    workspace, plan = result.workspace, rnnkit.prepare(problem.desc, problem.w)
    plan.infer(problem.x)  # what is loaded first would take longer than any alarm
    for _ in range(600):
        latest = workspace
        with pytest.raises(Interruption):
            alarm(rng.uniform(1e-6, 3e-4))
            while True:
                latest = problem.forward(workspace=workspace).workspace
                problem.backward(latest)
                plan.infer(problem.x)
        assert_nothing_taken(latest, plan)
    gc.collect()
    result, found = train(problem, workspace)
    assert_same_results(result, problem.infer(), OUTPUTS)
    assert_same_results(found, gradients, GRADIENTS)


ACQUIRING = [(Memory, name) for name in ("renew", "read", "borrow")]
ACQUIRING += [(thread_pool, "_enter"), (thread_pool._ThreadPool, "run")]


@pytest.mark.parametrize(("owner", "name"), ACQUIRING)
def test_exception_right_after_acquiring_releases_the_resource(monkeypatch, threads, owner, name):
    threads(2)
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
    assert_same_results(train(PROBLEM, workspace)[1], gradients, GRADIENTS)


@pytest.mark.parametrize("trouble", [RuntimeError("can't start new thread"), Interruption()])
def test_failed_thread_start_leaves_the_work_to_the_others(monkeypatch, threads, trouble):
    """Where the system gives no more threads, those that came do the work; an exception leaves none behind."""
    threads(3)
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
def test_interrupt_is_raised_between_the_kernel_calls(request, monkeypatch, call):
    """The workspace is void then, not wrong; the next call works."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    for constant, value in (("_CALL_WORK", 1), ("_CHUNK_BYTES", 1), ("_STEPWISE_WORK", 0)):
        monkeypatch.setattr(route, constant, value)
    problem = Problem(mode="gru", seq_len=3000, batch_size=5, dtype="float32")
    (result, gradients), expected, calls, run = train(problem), problem.infer(), [], thread_pool.run
    arguments = {} if call == "infer" else {"workspace": result.workspace}

    def interrupting(kernel, *arguments):
        run(kernel, *arguments)
        calls.append(kernel)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(thread_pool, "run", interrupting)
        getattr(problem, call)(**arguments)
    assert len(calls) == 3
    if call == "forward":
        with raises(rnnkit.WorkspaceError, "backward: workspace | latest forward"):
            problem.backward(result.workspace)
        result = problem.forward(workspace=result.workspace)
    assert_same_results(problem.backward(result.workspace), gradients, GRADIENTS)
    assert_same_results(problem.infer(), expected, OUTPUTS)
    assert np.array_equal(result.y, expected.y)
