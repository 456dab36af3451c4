"""Mixed random work, hour after hour: every result is compared with the reference, memory stays flat."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from child import run_child
from forking import assert_works, fork
from guarded import guard, guard_pages, place
from messages import says
from oracle import assert_right, assert_same, random_problem, right
from resident import MB, resident
from warm import compile_every_kernel
from work import Caller

import rnnkit

MODES = {"rnn_relu": rnnkit.RNN, "rnn_tanh": rnnkit.RNN, "lstm": rnnkit.LSTM, "gru": rnnkit.GRU}
KEPT = 6  # callers that live for a while, with their plans and workspaces
FIRST = 60  # jobs until what is kept has been kept


class Worker:
    """What a program does with the engine in the course of a day."""

    def __init__(self, trial):
        self.trial, self.rng, self.kept = trial, trial.rng, []
        self.workspaces = {}

    def new(self):
        """A problem that has been compared with the reference; the oldest one goes."""
        problem = random_problem(self.rng, layers=2)
        self.kept = [*self.kept[-KEPT + 1 :], Caller(problem, right(problem))]

    def known(self):
        return self.kept[self.rng.integers(len(self.kept))]

    def call(self):
        self.known().any(self.rng)

    def whole(self):
        caller = self.known()
        assert_right(caller.problem, caller.expected)

    def reuse(self):
        """A workspace goes from problem to problem, and never gives a wrong gradient."""
        name = int(self.rng.integers(2))
        steps = [None, 1, 4][self.rng.integers(3)]
        self.workspaces[name] = self.known().train(self.workspaces.get(name), checkpoint_steps=steps)

    def accumulate(self):
        caller = self.known()
        problem, dw = caller.problem, np.zeros(caller.problem.w.shape, caller.problem.dtype)
        workspace = problem.forward().workspace
        first = problem.backward(workspace, dw=dw)
        assert first.dw is dw and np.array_equal(dw, caller.expected.backward.dw)
        problem.backward(workspace, dw=dw)
        assert np.isfinite(dw).all()

    def guarded(self):
        caller = self.known()
        problem = caller.problem
        with guard_pages():
            whole = {name: getattr(problem, name) for name in ("x", "hx", "cx")}
            given = {name: place(value, self.rng)[0] for name, value in whole.items() if value is not None}
            found = caller.plan.infer(**given, lengths=problem.lengths)
        given = {name: np.array(value) for name, value in given.items()}
        assert_same(found, rnnkit.infer(problem.desc, problem.w, **given, lengths=problem.lengths))

    def saved(self):
        """A network that went through a file."""
        caller = self.known()
        desc, problem = caller.problem.desc, caller.problem
        options = {name: getattr(desc, name) for name in ("bias", "input_mode", "dropout", "dtype")}
        if problem.mode == "lstm":
            options |= dict(proj_size=problem.proj_size, cell_clip=problem.cell_clip)
        elif problem.mode == "gru":
            options |= dict(reset_after=problem.reset_after)
        else:
            options |= dict(nonlinearity=problem.mode[4:])
        sizes = desc.input_size, desc.hidden_size, desc.num_layers, desc.bidirectional
        net = MODES[problem.mode](*sizes, seed=0, **options)
        net.weights = problem.w
        with tempfile.TemporaryDirectory() as folder:
            net.save(os.path.join(folder, "net.npz"))
            loaded = rnnkit.load(os.path.join(folder, "net.npz"))
        assert loaded.desc == desc
        assert_same(loaded.infer(problem.x, problem.hx, problem.cx, lengths=problem.lengths), caller.expected.infer)

    def refused(self):
        problem = self.known().problem
        with pytest.raises(ValueError, match=says("forward: x", (2, 1, problem.input_size + 1))):
            rnnkit.forward(problem.desc, problem.w, np.zeros((2, 1, problem.input_size + 1), problem.dtype))
        with pytest.raises(TypeError, match=says("infer: w", problem.dtype, "float16")):
            rnnkit.infer(problem.desc, problem.w.astype(np.float16), problem.x)

    def threads(self):
        chosen = [self.known() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            runs = [pool.submit(one.any, np.random.default_rng(number)) for number, one in enumerate(chosen)]
        for run in runs:
            run.result()
        self.trial.count(threads=4)

    def forked(self):
        caller = self.known()
        caller.all()  # what a child needs is loaded
        assert assert_works([fork(caller.all)]) == 0
        self.trial.count(forks=1)

    def resident(self):
        """Bytes in memory without what is kept: a workspace that is used again grows to the largest problem."""
        self.kept, self.workspaces = [], {}
        found = resident()
        self.new()
        return found

    def job(self):
        """Mostly calls, now and then something dear."""
        jobs = [self.call] * 8 + [self.whole, self.reuse, self.accumulate, self.guarded, self.refused] * 2
        jobs += [self.new] * 2 + [self.saved, self.threads]
        (self.forked if self.rng.random() < 0.01 else jobs[self.rng.integers(len(jobs))])()


def soak(trial):
    compile_every_kernel(trial)  # whose machine code is not what grows
    worker, begin = Worker(trial), None
    worker.new()
    for number in trial.rounds(2 * FIRST):
        worker.job()
        if number == FIRST:
            begin = worker.resident()
        trial.count(jobs=1)
    grown = worker.resident() - begin
    assert grown <= 24 * MB, f"{grown / MB:.1f} MB more after {number - FIRST} jobs"
    trial.count(bytes=guard.bytes)


@pytest.mark.share(6)
@pytest.mark.parametrize("threads", [1, 3])
def test_mixed_work_stays_right_and_memory_flat(trial, threads):
    """One process for the whole time: whatever grows has time to grow."""
    run_child(trial, soak, most=float("inf"), threads=threads)
