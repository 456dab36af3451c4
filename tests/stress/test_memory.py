"""Resident memory stays flat, whatever changes from call to call; and what does not fit raises MemoryError."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest
from child import run_children
from oracle import assert_same, random_problem, right
from problems import CELLS, Problem
from resident import MB, resident
from tolerances import assert_same_bits
from warm import train_infer_and_step

import rnnkit

FIRST = 32  # steps that load kernels and fill what is kept


def peak_of(call):
    """Bytes by which the process grows at most during a call; its result is kept until then."""
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    result = call()
    status = Path("/proc/self/status").read_text()
    del result
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 - before


def assert_flat(trial, step, most, bound, what):
    """Call `step(number)` up to `most` times; behind the first ones, memory grows by no more than `bound` in all."""
    for number in range(FIRST):
        step(number)
    begin = resident()
    for number in trial.rounds(FIRST, most):
        step(FIRST + number)
    grown = resident() - begin
    assert grown <= bound, f"{grown / MB:.1f} MB more after {number + 1} {what}"
    return number + 1


def changing_shapes(trial):
    """Training steps and inference whose shapes change all the time, on one workspace and one plan."""
    net, rng = rnnkit.LSTM(5, 16, num_layers=2, bidirectional=True, seed=0), trial.rng
    plan, kept = net.prepare(), [None]

    def step(number):
        T, N = (int(rng.integers(0, 40)), int(rng.integers(1, 24))) if number else (40, 24)
        x = np.ones((T, N, 5), np.float32)
        lengths = rng.integers(0, T + 1, N) if number % 2 else None
        result = net.forward(x, lengths=lengths, workspace=kept[0])
        net.backward(result.workspace, dy=result.y)
        kept[0] = result.workspace
        plan.infer(x, lengths=lengths)

    trial.count(steps=assert_flat(trial, step, 5000, 6 * MB, "steps of changing shapes"))


def many_descriptors(trial):
    """Every network is another one; what is kept of a descriptor is small."""
    rng = trial.rng

    def step(number):
        hidden_size = 4 + number % 50
        cell = CELLS[list(CELLS)[number % len(CELLS)]] | ({"input_size": 1 + number // 50 % 50})
        train_infer_and_step(Problem(**cell, hidden_size=hidden_size, dtype="float32", dropout=float(rng.random()) / 2))

    trial.count(descriptors=assert_flat(trial, step, 700, 12 * MB, "descriptors"))


def many_plans(trial):
    """Plans come and go: their packed weights, half a megabyte each, go with them."""
    net, kept = rnnkit.GRU(128, 200, seed=0), []
    x = np.ones((3, 2, 128), np.float32)

    def step(number):
        kept.append(net.prepare())
        kept[-1].infer(x)
        kept[-1].step(x[0], None)
        del kept[:-3]

    trial.count(plans=assert_flat(trial, step, 2000, 6 * MB, "plans"))


def many_workspaces(trial):
    """Workspaces come and go, some of them used again, and plans that are used by threads at once."""
    net = rnnkit.LSTM(16, 64, num_layers=2, seed=0)
    x = np.ones((20, 16, 16), np.float32)

    def step(number):
        result = net.forward(x[: number % 20])
        again = net.forward(x, workspace=result.workspace)
        net.backward(again.workspace, dy=again.y)

    trial.count(steps=assert_flat(trial, step, 2000, 6 * MB, "workspaces"))


def refused_calls(trial):
    """A call that raises leaves nothing behind."""
    net = rnnkit.LSTM(16, 64, seed=0)
    x, other = np.ones((200, 64, 16), np.float32), np.ones((200, 64, 17), np.float32)

    def refuse(call, *arguments, **options):
        with pytest.raises((TypeError, ValueError, rnnkit.WorkspaceError)):
            call(*arguments, **options)

    def step(number):
        old = net.forward(x[: number % 7]).workspace
        net.forward(x[:3], workspace=old)
        refuse(net.backward, old)
        refuse(net.infer, other)
        refuse(net.forward, x, lengths=[1])
        refuse(net.forward, x, cx=x)

    trial.count(refused=4 * assert_flat(trial, step, 3000, 6 * MB, "refused calls"))


def long_batches(trial):
    """Index arrays of a long batch do not stay when its results are gone and idle memory is freed."""
    net = rnnkit.RNN(1, 1, seed=0)
    net.forward(np.zeros((10, 2, 1), np.float32))
    before = resident()
    for number in range(4):
        x = np.zeros((60_000 + number, 32, 1), np.float32)
        for call in (net.infer, net.forward, net.prepare().infer):
            call(x)
            trial.count(calls=1)
    del x
    rnnkit.set_idle_memory(0)
    grown = resident() - before
    assert grown <= 8 * MB, f"{grown / MB:.1f} MB stay after four long batches"


def narrow_networks(trial, T=100_000, N=64):
    """With one unit, y is as large as any array gets; what a call needs beside is a small multiple of it."""
    net, x = rnnkit.RNN(1, 1, seed=0), np.zeros((T, N, 1), np.float32)
    net.infer(x[:100])
    plan, nbytes = net.prepare(), x.nbytes
    for name, call in {"infer": net.infer, "plan.infer": plan.infer}.items():
        found = peak_of(lambda call=call: call(x))
        assert found <= 2.5 * nbytes, f"{name} takes {found / MB:.0f} MB for a y of {nbytes / MB:.0f} MB"
    workspace = rnnkit.workspace_nbytes(net.desc, T, N)
    found, most = peak_of(lambda: net.forward(x)), workspace + 1.5 * nbytes
    assert found <= most, f"forward takes {found / MB:.0f} MB, the workspace {workspace / MB:.0f} MB"
    trial.count(calls=3)


@pytest.mark.parametrize("work", [changing_shapes, many_descriptors, many_plans, many_workspaces, refused_calls])
def test_memory_is_flat(trial, work):
    run_children(trial, work, threads=2)


@pytest.mark.parametrize("work", [long_batches, narrow_networks])
def test_long_batch_takes_little_beside_its_output(trial, work):
    run_children(trial, work)


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
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + room, resource.RLIM_INFINITY))
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


def test_call_that_does_not_fit_raises_memory_error(trial):
    run_children(trial, limited, threads=1 + os.getpid() % 2)
