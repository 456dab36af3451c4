"""Fuzzed calls, with arrays in every form of memory, between guard pages.

A call gives the bits of a plain call, which is compared with the reference; what it was given holds the same bytes
afterwards.
"""

import ctypes

import numpy as np
import pytest
from child import run_child, run_children
from guarded import FORMS, guard, guard_pages, place
from oracle import assert_same, random_problem, right
from tolerances import assert_same_bits

import rnnkit

CALLS = 40  # of a problem
SEGMENTED = dict(batch_size=1030, input_size=3, hidden_size=5, proj_size=None, input_mode="linear", lengths=None)
"""So many sequences that each step is a chunk of its own, and checkpoints cut few steps into several segments."""
ARRAYS = {"w", "x", "hx", "cx", "dy", "dhy", "dcy", "dw"}
WRITEABLE = {name: form for name, form in FORMS.items() if name != "read-only"}


class Case:
    """A problem, and what one of the calls takes; one of the workspaces of earlier calls is used again."""

    def __init__(self, problem, rng, foreign):
        self.problem, self.rng = problem, rng
        self.plan = rnnkit.prepare(problem.desc, problem.w)
        self.workspaces = [foreign, problem.forward(workspace=None).workspace]

    def calls(self):
        chosen = [self.forward, self.backward, self.infer, self.plan_infer, self.prepare]
        if not self.problem.bidirectional and self.problem.seq_len:
            chosen.append(self.step)
        return chosen[self.rng.integers(len(chosen))]()

    def network(self):
        return dict(desc=self.problem.desc, w=self.problem.w)

    def inputs(self):
        problem = self.problem
        return dict(x=problem.x, hx=problem.hx, cx=problem.cx, lengths=problem.lengths)

    def infer(self):
        return rnnkit.infer, self.network() | self.inputs(), rnnkit.infer

    def plan_infer(self):
        return self.plan.infer, self.inputs(), lambda **given: rnnkit.infer(**self.network(), **given)

    def prepare(self):
        def prepared(desc, w):
            return rnnkit.prepare(desc, w).infer(**self.inputs())

        return prepared, self.network(), lambda desc, w: rnnkit.infer(desc, w, **self.inputs())

    def step(self):
        problem = self.problem

        def one_step(x, **given):
            """A step is a sequence of one."""
            result = rnnkit.infer(problem.desc, problem.w, x[None], **given)
            return result._replace(y=result.y[0])

        return self.plan.step, dict(x=problem.x[0], hx=problem.hx, cx=problem.cx), one_step

    def forward(self):
        names = self.network() | self.inputs() | dict(seed=self.problem.seed, checkpoint_steps=self.checkpoint_steps())
        number = self.rng.integers(2)

        def reusing(checkpoint_steps, **given):
            result = rnnkit.forward(workspace=self.workspaces[number], checkpoint_steps=checkpoint_steps, **given)
            self.workspaces[number] = result.workspace
            if checkpoint_steps is None:
                again = rnnkit.forward(**given)
                assert np.array_equal(result.workspace.hidden(0), again.workspace.hidden(0))
            return rnnkit.Infer(*result[:3])

        def plain(checkpoint_steps, **given):
            return rnnkit.Infer(*rnnkit.forward(**given)[:3])

        return reusing, names, plain

    def backward(self):
        problem = self.problem
        dw = problem.draw(7, problem.w.shape) if self.rng.random() < 0.5 else None
        workspace = problem.forward(checkpoint_steps=self.checkpoint_steps()).workspace
        names = self.network() | dict(workspace=workspace, dw=dw)
        names |= dict(dy=problem.dy, dhy=problem.dhy, dcy=problem.dcy)

        def plain(workspace, **given):
            return rnnkit.backward(workspace=problem.forward().workspace, **given)

        return rnnkit.backward, names, plain

    def checkpoint_steps(self):
        """None, or some that leave one segment or, in large batches, several."""
        return None if self.rng.random() < 0.5 else int(self.rng.integers(1, self.problem.seq_len + 3))


def laid_out(name, value, rng):
    """A right argument in one of the forms of memory."""
    if name not in ARRAYS or value is None:
        return value, "None"
    with guard_pages():
        return place(value, rng, WRITEABLE if name == "dw" else FORMS)


def copies(arguments):
    """The same values in plain memory."""
    return {n: np.array(v, order="C", subok=False) if isinstance(v, np.ndarray) else v for n, v in arguments.items()}


def fuzz_calls(trial):
    rng, foreign = trial.rng, None
    for _ in trial.rounds(3):
        problem = random_problem(rng, **rng.choice([{}, SEGMENTED], p=[0.8, 0.2]))
        right(problem)
        case = Case(problem, rng, foreign)
        for _ in range(CALLS):
            one_call(case)
        foreign = case.workspaces[0]
        trial.count(calls=CALLS, inputs=len(problem.w) + problem.x.size)
    trial.count(bytes=guard.bytes)


def one_call(case):
    function, arguments, plain = case.calls()
    forms = {}
    for name, value in arguments.items():
        arguments[name], forms[name] = laid_out(name, value, case.rng)
    same, what = copies(arguments), f"{getattr(function, '__qualname__', function)} of {case.problem} with {forms}"
    try:
        with guard_pages():
            result = function(**arguments)
        for name in ARRAYS & arguments.keys() - {"dw"}:
            assert_same_bits(name, arguments[name], same[name])
        assert_same(result, plain(**same))
    except Exception as error:
        raise AssertionError(what) from error


@pytest.mark.share(6)
def test_fuzzed_calls_are_right(trial):
    run_children(trial, fuzz_calls)


def read_outside(trial, where):
    """A mistake as a kernel could make it: one element behind the last one, or before the first one."""
    with guard_pages():
        array = place(np.ones(5), trial.rng, {where: FORMS[where]})[0]
    address = array.ctypes.data + (array.nbytes if where == "at the end" else -array.itemsize)
    trial.count(found=ctypes.c_double.from_address(address).value)


@pytest.mark.parametrize("where", ["at the end", "at the start"])
def test_access_out_of_bounds_ends_the_process(trial, where):
    with pytest.raises(AssertionError, match="SIGSEGV"):
        run_child(trial, read_outside, where=where)
