"""Resident memory stays flat, whatever changes from call to call; and what does not fit raises MemoryError."""

import ctypes
import gc
import resource
from pathlib import Path

import numpy as np
import pytest
from child import run_children
from oracle import assert_same, random_problem, right
from problems import CELLS, Problem
from tolerances import assert_same_bits
from work import Caller, compile_every_kernel

import rnnkit

MB = 1 << 20
FIRST = 32  # steps that load kernels and fill what is kept
_libc = ctypes.CDLL(None)


def pages(number):
    """Bytes of this process: in its address space, or in memory."""
    return int(Path("/proc/self/statm").read_text().split()[number]) * resource.getpagesize()


def resident():
    """Bytes in memory, after what is free or idle has gone back to the system."""
    gc.collect()
    rnnkit.set_idle_memory(rnnkit.set_idle_memory(0))
    _libc.malloc_trim(0)
    return pages(1)


def assert_flat(trial, step, most, bound, what, first=FIRST, kept=()):
    """Call `step(number)` up to `most` times; behind the first ones, memory grows by no more than `bound` in all.

    What `kept` holds, objects that clear, does not count.
    """
    for number in range(first):
        step(number)
    for one in kept:
        one.clear()
    begin = resident()
    for number in trial.rounds(FIRST, most):
        step(first + number)
    for one in kept:
        one.clear()
    grown = resident() - begin
    assert grown <= bound, f"{grown / MB:.1f} MB more after {number + 1} {what}"
    trial.count(**{what.replace(" ", "_"): number + 1})


def mixed_calls(trial):
    """Any call of any network, with workspaces that go from network to network: the results are right, too."""
    compile_every_kernel(trial)  # whose machine code is not what grows
    rng, known, workspaces = trial.rng, [], {}

    def step(number):
        if number % 8 == 0 or not known:
            problem = random_problem(rng, layers=2)
            known[:-5] = []
            known.append(Caller(problem, right(problem)))
        caller, name = known[rng.integers(len(known))], int(rng.integers(2))
        caller.any(rng)
        workspaces[name] = caller.train(workspaces.get(name), checkpoint_steps=[None, 1, 4][rng.integers(3)])

    assert_flat(trial, step, None, 24 * MB, "mixed calls", first=1000, kept=(known, workspaces))


def changing_shapes(trial):
    """Training steps whose shapes change all the time, in used and new workspaces; plans that come and go; refusals."""
    net, rng = rnnkit.LSTM(5, 16, num_layers=2, bidirectional=True, seed=0), trial.rng
    kept = [None]

    def train(x, lengths, workspace):
        result = net.forward(x, lengths=lengths, workspace=workspace)
        net.backward(result.workspace, dy=result.y)
        return result.workspace

    def step(number):
        T, N = (int(rng.integers(0, 40)), int(rng.integers(1, 24))) if number else (40, 24)
        x = np.ones((T, N, 5), np.float32)
        lengths = rng.integers(0, T + 1, N) if number % 2 else None
        plan = net.prepare()
        plan.infer(x, lengths=lengths)
        train(x, lengths, None)
        stale, kept[0] = kept[0], train(x, lengths, kept[0])
        if number:
            with pytest.raises(rnnkit.WorkspaceError):
                net.backward(stale)
        with pytest.raises(ValueError, match="infer: x must"):
            plan.infer(x[:, :, :4])

    assert_flat(trial, step, 5000, 6 * MB, "steps of changing shapes")


def many_descriptors(trial):
    """Every network is another one; what is kept of a descriptor, or of its plan, is small."""
    rng = trial.rng

    def step(number):
        cell = CELLS[list(CELLS)[number % len(CELLS)]] | ({"input_size": 1 + number // 50 % 50})
        hidden_size, dropout = 4 + number % 50, float(rng.random()) / 2
        problem = Problem(**cell, hidden_size=hidden_size, dtype="float32", dropout=dropout)
        problem.backward(problem.forward().workspace)
        plan = rnnkit.prepare(problem.desc, problem.w)
        plan.infer(problem.x)
        plan.step(problem.x[0], problem.hx, problem.cx)

    assert_flat(trial, step, 700, 12 * MB, "descriptors")


def limited(trial):
    """Calls that do not fit into the address space: MemoryError or a right result; others work afterwards."""
    rng = trial.rng
    small = random_problem(rng, sizes=(3, 5, 17))
    expected = right(small)
    net = rnnkit.LSTM(8, 64, num_layers=2, seed=0)
    plan, seen, ones = net.prepare(), 0, np.ones((4000, 16, 8), np.float32)
    y = net.infer(ones).y  # that of a shorter input is the beginning of it
    first = net.forward(ones[:200])
    net.backward(first.workspace, dy=first.y)  # kernels and workers are there
    for _ in trial.rounds():
        x, results = ones[: rng.integers(1, len(ones))], []
        workspace = net.forward(ones[:20]).workspace  # whose memory is to grow
        room = int(rng.integers(8, 120)) * MB
        resource.setrlimit(resource.RLIMIT_AS, (pages(0) + room, resource.RLIM_INFINITY))
        try:
            results.append(plan.infer(x))
            results.append(net.forward(x, workspace=workspace))
            results.append(net.backward(results[1].workspace, dy=results[1].y))
        except MemoryError:
            seen += 1
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for found in results[:2]:
            assert_same_bits("y", found.y, y[: len(x)])
        found = net.forward(x, workspace=workspace)  # its memory has grown, or a part of it
        for again in (found, plan.infer(x)):
            assert_same_bits("y", again.y, y[: len(x)])
        if len(results) == 3:
            assert_same(net.backward(found.workspace, dy=found.y), results[2])
        found = again = results = workspace = None
        for _ in range(2):
            outputs = small.forward()
            assert_same(rnnkit.Infer(*outputs[:3]), expected.forward)
            assert_same(small.backward(outputs.workspace), expected.backward)
        trial.count(calls=3)
    trial.count(out_of_memory=seen)


FLAT = [pytest.param(mixed_calls, marks=pytest.mark.share(6)), changing_shapes, many_descriptors]


@pytest.mark.parametrize("work", FLAT)
def test_memory_is_flat(trial, work):
    """In one process for the whole time: whatever grows has time to grow."""
    run_children(trial, work, threads=2, most=float("inf"))


def test_call_that_does_not_fit_raises_memory_error(trial):
    run_children(trial, limited, threads=2)
