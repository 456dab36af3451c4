"""Fuzzed calls: right and wrong arguments, in every form of memory, between guard pages.

A call gives the bits of a plain call, which is compared with the reference, or raises TypeError, ValueError or
WorkspaceError; what it was given holds the same bytes afterwards.
"""

import ctypes

import numpy as np
import pytest
import spoiled
from child import run_child, run_children
from guarded import CONTIGUOUS, FORMS, guard, guard_pages, place, poison
from oracle import assert_same, random_problem, right
from spoiled import EITHER, RIGHT, WRONG, attempt

import rnnkit

REFUSALS = (TypeError, ValueError, rnnkit.WorkspaceError)
CALLS = 40  # of a problem
SEGMENTED = dict(batch_size=1030, input_size=3, hidden_size=5, proj_size=None, input_mode="linear", lengths=None)
"""So many sequences that each step is a chunk of its own, and checkpoints cut few steps into several segments."""
ARRAYS = {"w", "x", "hx", "cx", "dy", "dhy", "dcy", "dw"}
WRITEABLE = {name: form for name, form in CONTIGUOUS.items() if name != "read-only"}


def call_with(function, arguments, expected, what):
    given = [value for name, value in arguments.items() if name != "dw"]
    return attempt(lambda: function(**arguments), given, expected, what, REFUSALS)


class Case:
    """A problem, and what one of the calls takes."""

    def __init__(self, problem, rng, foreign):
        self.problem, self.rng, self.foreign = problem, rng, foreign
        self.plan = rnnkit.prepare(problem.desc, problem.w)
        self.latest = problem.forward(workspace=None).workspace  # reused again and again
        self.stale = self.latest

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
        names = self.network() | self.inputs()
        names |= dict(seed=self.problem.seed, workspace=None, checkpoint_steps=self.checkpoint_steps())

        def reusing(workspace, checkpoint_steps, **given):
            result = rnnkit.forward(workspace=workspace, checkpoint_steps=checkpoint_steps, **given)
            if workspace is self.latest:
                self.stale, self.latest = self.latest, result.workspace
            if checkpoint_steps is None:
                states, again = result.workspace.hidden(0), rnnkit.forward(**given | {"seed": result.workspace.seed})
                assert np.array_equal(states, again.workspace.hidden(0))
            return rnnkit.Infer(*result[:3])

        def plain(workspace, checkpoint_steps, **given):
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

    def spoil(self, name, arguments, function):
        """Another value for an argument, and what the call may do with it."""
        problem, rng, value = self.problem, self.rng, arguments[name]
        if name == "lengths":
            return spoiled.lengths(problem.seq_len, problem.batch_size, rng)
        if name == "seed":
            return spoiled.SEEDS[rng.integers(len(spoiled.SEEDS))]
        if name == "checkpoint_steps":
            number = spoiled.NUMBERS[rng.integers(len(spoiled.NUMBERS))]
            whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool) and number >= 1
            return number, RIGHT if whole or number is None else WRONG
        if name == "desc":
            others = [None, "lstm", {}, rnnkit.RNNDescriptor, 3, problem.twin(num_layers=problem.num_layers + 1).desc]
            return others[rng.integers(len(others))], WRONG
        if name == "workspace":
            return self.another_workspace(function)
        if value is None and name == "cx" and problem.mode != "lstm":
            return np.zeros(problem.cell_shape, problem.dtype), WRONG
        if value is None:
            shapes = {"hx": problem.hidden_shape, "cx": problem.cell_shape}
            value = np.zeros(shapes.get(name, problem.w.shape), problem.dtype)
        elif rng.random() < 0.1:
            return None, WRONG if name in ("w", "x") else EITHER
        if name == "w" and rng.random() < 0.1:
            return np.repeat(value, 2)[::2], EITHER
        if name == "dw" and rng.random() < 0.3:
            return self.over_weights(value, arguments["w"])
        axes = [value.ndim - 1] if name == "x" else range(value.ndim)
        return spoiled.array(value, rng, axes)

    def over_weights(self, dw, w):
        """A place for the gradient that lies over the weights, or may not be written, or is not contiguous."""
        read_only = dw.copy()
        read_only.flags.writeable = False
        choices = [(w, WRONG), (w[::-1], WRONG if w.size else EITHER), (read_only, WRONG), (dw[::-1], EITHER)]
        return choices[self.rng.integers(len(choices))]

    def another_workspace(self, function):
        rng, things = self.rng, [object(), "workspace", {}, self.latest.memory, rnnkit.Workspace, 3, np.zeros(3)]
        kind = rng.integers(5)
        if function is not rnnkit.backward:
            if kind == 0:
                return things[rng.integers(len(things))], WRONG
            chosen = [self.latest, self.stale, self.foreign][rng.integers(3)] if self.foreign else self.latest
            assert poison(chosen), "the workspace's memory was not found"
            if chosen is not self.latest:
                self.latest = self.problem.forward().workspace if chosen is self.stale else self.latest
            return chosen, EITHER if chosen is self.stale else RIGHT
        if kind == 0:
            return [None, *things][rng.integers(len(things) + 1)], WRONG
        if kind == 1 or not self.foreign:
            old = self.problem.forward().workspace
            self.problem.forward(workspace=old)
            return old, WRONG
        return self.foreign, WRONG if self.foreign.desc != self.problem.desc else EITHER


def laid_out(name, value, rng):
    """A right argument in one of the forms of memory."""
    if name not in ARRAYS or value is None:
        return value, "None"
    with guard_pages():
        return place(value, rng, WRITEABLE if name == "dw" else CONTIGUOUS if name == "w" else FORMS)


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
            one_call(trial, case)
        foreign = case.latest
        trial.count(problems=1, inputs=len(problem.w) + problem.x.size)
    trial.count(bytes=guard.bytes)


def one_call(trial, case):
    rng, problem = trial.rng, case.problem
    function, arguments, plain = case.calls()
    forms = {}
    for name, value in arguments.items():
        arguments[name], forms[name] = laid_out(name, value, rng)
    expected, bad = RIGHT, None
    if rng.random() < 0.5:
        bad = str(rng.choice(list(arguments)))
        arguments[bad], expected = case.spoil(bad, arguments, function)
        forms[bad] = f"{type(arguments[bad]).__name__} {str(arguments[bad])[:200]}"
    what = f"{getattr(function, '__qualname__', function)} of {problem} with {forms}"
    same = copies(arguments)
    result = call_with(function, arguments, expected, what)
    trial.count(calls=1, refused=result is None)
    if result is not None:
        if arguments.get("seed", 0) is None and problem.dropout:
            return  # its mask is anybody's guess
        assert_same(result, plain(**same))


def overlap(first, second_size, dtype, rng):
    """Two flat arrays of these sizes in one piece of memory, that share some of it."""
    shared = int(rng.integers(1, min(first, second_size) + 1))
    whole = np.zeros(first + second_size - shared, dtype)
    return (whole[:first], whole[first - shared :]) if rng.random() < 0.5 else (whole[-first:], whole[:second_size])


def fuzz_overlaps(trial):
    """dw over what forward and backward were given: refused, and nothing changes."""
    rng = trial.rng
    for _ in trial.rounds(20):
        problem = random_problem(rng, dropout=0.0, seq_len=int(rng.integers(1, 5)), lengths=None)
        values = dict(x=problem.x, hx=problem.hx, cx=problem.cx, dy=problem.dy, dhy=problem.dhy, dcy=problem.dcy)
        name = str(rng.choice([name for name, value in values.items() if value is not None]))
        value = values[name]
        dw, flat = overlap(problem.w.size, value.size, problem.dtype, rng)
        flat[:] = value.ravel()
        values[name] = flat.reshape(value.shape)
        result = rnnkit.forward(problem.desc, problem.w, *(values[one] for one in ("x", "hx", "cx")))
        arguments = dict(desc=problem.desc, w=problem.w, workspace=result.workspace, dw=dw)
        arguments |= {one: values[one] for one in ("dy", "dhy", "dcy")}
        before = value.copy()
        call_with(rnnkit.backward, arguments, WRONG, f"dw over {name} in backward of {problem}")
        assert np.array_equal(values[name], before), f"dw over {name} changed that of {problem}"
        trial.count(calls=1)


def views_of_workspace(problem, workspace, rng):
    """Arguments that are views of the memory that the call is about to use again."""
    rows, states = problem.hidden_shape[0], {}
    start = int(rng.integers(problem.seq_len - rows + 1))
    layer, direction = int(rng.integers(problem.num_layers)), int(rng.integers(problem.directions))
    if rng.random() < 0.6:
        states["hx"] = workspace.hidden(layer, direction)[start : start + rows]
    if problem.mode == "lstm" and rng.random() < 0.6:
        states["cx"] = workspace.cell(layer, direction)[start : start + rows]
    if problem.input_size == problem.output_size and (not states or rng.random() < 0.3):
        states["x"] = workspace.hidden(layer, direction)
    return states


def fuzz_views(trial):
    """x, hx or cx in the workspace whose memory is used again: refused, or the result is right."""
    rng = trial.rng
    for _ in trial.rounds(20):
        size = int(rng.integers(1, 9))
        problem = random_problem(rng, sizes=(size,), seq_len=int(rng.integers(6, 9)), dropout=0.0, lengths=None)
        workspace = problem.forward().workspace
        given = dict(desc=problem.desc, w=problem.w, x=problem.x, hx=problem.hx, cx=problem.cx)
        given |= views_of_workspace(problem, workspace, rng)
        plain = rnnkit.forward(**copies(given))
        expected = rnnkit.Infer(*plain[:3])
        what = f"{[n for n, v in given.items() if isinstance(v, np.ndarray) and v.base is not None]} of {problem}"
        try:
            found = rnnkit.forward(**given, workspace=workspace)
        except REFUSALS:
            trial.count(calls=1, refused=1)
            continue
        trial.count(calls=1)
        assert np.array_equal(found.y, expected.y), f"views of the workspace: {what}"
        assert_same(found, expected)
        back, wanted = (problem.backward(one.workspace) for one in (found, plain))
        assert_same(back, wanted)


@pytest.mark.parametrize("work", [pytest.param(fuzz_calls, marks=pytest.mark.share(6)), fuzz_overlaps, fuzz_views])
def test_fuzzed_calls_are_right_or_refused(trial, work):
    run_children(trial, work)


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
