"""Problems of several sizes with their right results: what threads, forks and interrupted calls are compared with."""

import threading
from contextlib import contextmanager

import numpy as np
from oracle import DTYPES, assert_same, random_problem, right
from problems import CELLS, Problem

import rnnkit

# Small ones that one thread does alone, and ones whose work is shared by units, by rows, by layers and by directions.
SHAPES = (
    dict(hidden_size=5, seq_len=4, batch_size=3, num_layers=2, lengths=(4, 0, 2), dropout=0.5),
    dict(hidden_size=64, input_size=33, seq_len=8, batch_size=20),
    dict(hidden_size=48, input_size=17, seq_len=10, batch_size=6, bidirectional=True, num_layers=2),
    dict(hidden_size=64, input_size=5, seq_len=10, batch_size=16, num_layers=2),
    dict(hidden_size=160, input_size=64, seq_len=4, batch_size=2),
    dict(hidden_size=9, input_size=5, seq_len=4, batch_size=1030, num_layers=2, dropout=0.5),  # several segments
)


def shared_problems(rng, count, shapes=SHAPES):
    """Two random cells in these shapes, each with results that were compared with the reference."""
    cells, dtype = rng.choice(list(CELLS), 2), str(rng.choice(DTYPES))
    problems = []
    for number, shape in enumerate(rng.permutation(shapes)[:count]):
        problems.append(Problem(**CELLS[cells[number % 2]], **shape, dtype=dtype, seed=int(rng.integers(2**32))))
    return [(problem, right(problem)) for problem in problems]


def small_problem(rng):
    problem = random_problem(rng, steps=3, sizes=(1, 2, 5, 17), layers=2)
    return problem, right(problem)


class Caller:
    """Calls of one problem, each of which checks the bits of its results; a plan is shared by all who call."""

    def __init__(self, problem, expected):
        self.problem, self.expected = problem, expected
        self.plan = rnnkit.prepare(problem.desc, problem.w)

    def infer(self):
        assert_same(self.problem.infer(), self.expected.infer)

    def plan_infer(self, plan=None):
        problem = self.problem
        found = (plan or self.plan).infer(problem.x, problem.hx, problem.cx, lengths=problem.lengths)
        assert_same(found, self.expected.infer)

    def prepare(self):
        self.plan_infer(rnnkit.prepare(self.problem.desc, self.problem.w))

    def train(self, workspace=None, checkpoint_steps=None):
        result = self.problem.forward(workspace=workspace, checkpoint_steps=checkpoint_steps)
        assert_same(rnnkit.Infer(*result[:3]), self.expected.forward)
        assert_same(self.problem.backward(result.workspace), self.expected.backward)
        return result.workspace

    def train_in_segments(self):
        for checkpoint_steps in (1, 3):
            self.train(self.train(checkpoint_steps=checkpoint_steps), checkpoint_steps)

    def step(self):
        problem = self.problem
        if problem.bidirectional or problem.lengths is not None or problem.seq_len == 0:
            return
        hy, cy = problem.hx, problem.cx
        for t in range(problem.seq_len):
            y, hy, cy = self.plan.step(problem.x[t], hy, cy)
            assert np.array_equal(y, self.expected.infer.y[t]), f"step {t} of {problem}"
        assert_same(rnnkit.Infer(y, hy, cy), self.expected.infer, ("hy", "cy"))

    def all(self):
        """All calls: from here on every kernel that they need is there."""
        for call in self._calls():
            call()

    def any(self, rng):
        """One of the calls."""
        calls = self._calls()
        calls[rng.integers(len(calls))]()

    def _calls(self):
        return self.infer, self.plan_infer, self.prepare, self.train, self.train_in_segments, self.step


def callers(rng, count, shapes=SHAPES):
    return [Caller(*one) for one in shared_problems(rng, count, shapes)]


@contextmanager
def threads_that_go_on(function, count):
    """Threads that call `function(rng)` again and again; what they raise is raised here."""
    stop, errors = threading.Event(), []

    def run(seed):
        rng = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                function(rng)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(seed,)) for seed in range(count)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in running:
            thread.join()
    if errors:
        raise errors[0]
