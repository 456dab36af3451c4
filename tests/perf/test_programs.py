"""The suite of programs: each runs plain and accelerated, results are compared, and what cannot run is named."""

import pickle
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_programs
import torch
from messages import raises
from tiny_programs import CHAOTIC, FAILING, LOUD, MISSING, TINY, WRONG
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from perf import timing
from perf.__main__ import main
from perf.programs import converted, runner, suite, table, watch
from perf.programs.converted import Converted
from perf.programs.runner import Outcome

RUN = ["run", "--suite", "programs", "--threads", "1", "--seconds", "0"]
LEFT = {"Own(4, 4)": "tiny_programs.Own.forward does not call super().forward"}


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch):
    """Collecting garbage takes long beside a test runner's objects."""
    monkeypatch.setattr(runner, "gc", SimpleNamespace(collect=int))


@pytest.fixture
def programs(monkeypatch):
    return lambda *programs: monkeypatch.setattr(suite, "PROGRAMS", programs)


def calls(package, own):
    return Converted("tiny/converted", ("torch",), partial(tuple, (package, own)))


ONES = partial(np.ones, 3)
CONVERTED = calls(ONES, ONES)


def test_programs_run_in_processes_of_their_own(programs, capfd):
    programs(LOUD, FAILING, CONVERTED, MISSING)
    assert main(RUN) == 1
    out, err = capfd.readouterr()
    assert not err
    fit, predict, results, left, *sizes, failed, times, equal, missing = out.splitlines()
    for line, phase in ((fit, "fit"), (predict, "predict")):
        assert line.startswith("tiny/gru ") and f" 1 threads  {phase} " in line and "x  recurrent " in line
    assert results.startswith("    results equal, ") and results.endswith("; 1 modules accelerated")
    assert left == f"    left: Own(4, 4): {LEFT['Own(4, 4)']}"
    assert sizes[0] == f"    fit: 2 {tiny_programs.SIZES} train; 2 GRU t5 n2 i4 h4 l1 train"
    assert sizes[1] == f"    predict: 1 {tiny_programs.SIZES} infer"
    assert failed.startswith("failed: tiny/failing: RuntimeError: accelerated predict: ValueError: no such thing")
    assert times.startswith("tiny/converted ") and equal == "    results equal, 0e+00 apart"
    assert missing == "tiny/missing: not installed: no_such_package, nor_this_one"


def test_unequal_results_have_status_1(programs, monkeypatch):
    monkeypatch.setattr(suite, "measure", lambda *_: Outcome([], 3, LEFT, float("nan"), 1e-7))
    programs(TINY)
    assert main(RUN) == 1


def test_table_can_be_sent_to_processes():
    assert pickle.loads(pickle.dumps(table.PROGRAMS)) is not None


def test_programs_run_accelerated_and_plain_in_turn(monkeypatch):
    right, seen = tiny_programs.predict, []
    program = TINY._replace(predict=lambda model: seen.append(type(model[0]).__module__) or right(model))
    found = runner.measure(program, 0.0)
    ours, torchs = "rnnkit.torch.modules", "torch.nn.modules.rnn"
    assert seen == [ours, torchs, *[torchs, ours] * (len(seen) // 2 - 1)] and len(seen) >= 2 + 2 * 3 * 3
    assert (found.accelerated, found.left) == (1, LEFT) and found.equal and found.noise == 0.0
    assert [phase.name for phase in found.phases] == ["fit", "predict"]
    assert all(phase.plain > 0 and phase.own > 0 and 0 < phase.share < 1 for phase in found.phases)


def test_unequal_results_are_noticed_and_chaotic_programs_compare_parameters():
    found = runner.measure(WRONG, 0.0)
    assert not found.equal and found.deviation == pytest.approx(0.5)
    assert runner.measure(CHAOTIC, 0.0).equal


def test_phases_have_their_least_times(monkeypatch):
    first, fits, predictions = [9.0] * 4, [5.0, 6.0, 7.0, 3.0], [4.0, 8.0, 2.0, 9.0, 6.0, 5.0, 3.0, 7.0]
    times = iter([*first, *fits[:2], *predictions[:4], *fits[2:], *predictions[4:]])
    monkeypatch.setattr(runner._Variant, "_timed", lambda self, what, work, around=None: (0.0, next(times)))
    monkeypatch.setattr(runner, "repeated", lambda seconds: range(2))
    fit, predict = runner.measure(TINY, 0.0).phases
    assert (fit.plain, fit.own, predict.plain, predict.own) == (5.0, 3.0, 2.0, 5.0)


NAN, INF = float("nan"), float("inf")
DEVIATIONS = [([[1.0, 2.0]], [[1.0, 2.5]], 0.2), ([[0.0], [-4.0]], [[0.0], [-8.0]], 0.5), ([[]], [[]], 0.0)]
DEVIATIONS += [([[NAN, 1.0]], [[NAN, 1.0]], 0.0), ([[NAN, 1.0]], [[1.0, 1.0]], INF), ([[1.0]], [[NAN]], INF)]
DEVIATIONS += [([[1.0]], [[1.0, 1.0]], INF), ([[1.0]], [[1.0], [1.0]], INF), ([[INF]], [[1.0]], INF)]


@pytest.mark.parametrize(("one", "other", "expected"), DEVIATIONS)
def test_deviation_is_relative_to_the_largest_value(one, other, expected):
    assert runner.deviation([np.array(a) for a in one], [np.array(a) for a in other]) == expected


def test_results_of_converted_programs_are_compared():
    program = calls(lambda: [np.ones(2), np.array([4.0])], lambda: (np.ones(2), np.array([5.0])))
    for close in (1e-4, 0.3):
        found = converted.measure(program._replace(close=close), 0.0, 1)
        assert found.deviation == 0.25 and found.equal == (close == 0.3)


@pytest.mark.parametrize(("threads", "clock"), [(1, "process_time"), (2, "perf_counter")])
def test_converted_programs_are_timed_in_turn_by_the_least(monkeypatch, threads, clock):
    now, seen = SimpleNamespace(time=0.0), []
    seconds = iter([9.0, 9.0, 5.0, 4.0, 3.0, 6.0, 7.0, 2.0])

    def run(name):
        seen.append(name)
        now.time += next(seconds)
        return 1.0

    monkeypatch.setattr(converted, clock, lambda: now.time)
    monkeypatch.setattr(converted, "repeated", lambda seconds: range(3))
    found = converted.measure(calls(partial(run, "package"), partial(run, "rnnkit")), 0.0, threads)
    assert (found.package, found.own) == (3.0, 2.0) and seen == ["package", "rnnkit"] * 4


def test_process_that_takes_too_long_is_killed(tmp_path):
    worker = timing.Worker("slow", 1, kind=runner.Runner)
    with raises(timing.WorkerError, "slow: | 0.01 s"):
        worker.call("measure", TINY, 0.0, str(tmp_path), limit=0.01)
    worker.close()
    assert worker._process.exitcode == -9


GRU, LSTM, X = nn.GRU(3, 4), nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), torch.ones(5, 2, 3)
PACKED = pack_padded_sequence(X, torch.tensor([5, 1]))


def test_calls_are_counted_by_their_sizes():
    with watch.Watch() as found:
        GRU(PACKED)
        with torch.no_grad():
            LSTM(X)
            LSTM(X)
            nn.GRUCell(3, 4)(X[0, 0])
        nn.Linear(3, 3)(X)
    GRU(X)[0].sum().backward()
    assert found.calls == {
        "GRU t5 n2 (packed) i3 h4 l1 train": 1,
        "LSTM t2 n5 i3 h4 l2 bi infer": 2,
        "GRUCell i3 h4 infer": 1,
    }
    assert not any(parameter._post_accumulate_grad_hooks for parameter in GRU.parameters())


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, clock, forward, backward, x, weight):
        ctx.clock, ctx.backward = clock, backward
        clock.now += forward
        return x + weight

    @staticmethod
    def backward(ctx, dy):
        ctx.clock.now += ctx.backward
        return None, None, None, dy, dy


class Cell(nn.RNNCell):
    """Takes 1 s forward and 2 s and 4 s backward, whatever it computes."""

    def forward(self, x, h):
        x = Slow.apply(self.clock, 0, 4, x, self.bias_ih)
        return Slow.apply(self.clock, 1, 2, x, h), x


@pytest.mark.parametrize("learnt", [True, False])
def test_only_seconds_of_recurrent_modules_are_counted(monkeypatch, learnt):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(watch, "perf_counter", lambda: clock.now)
    cell, first = Cell(3, 3), torch.ones(2, 3, requires_grad=learnt)
    cell.clock, h = clock, torch.zeros(2, 3)
    with watch.Watch() as found:
        for _ in range(5):
            x = Slow.apply(clock, 100, 200, first, first)
            h, other = cell(x, h)
            h = Slow.apply(clock, 300, 400, h, other)
        h.sum().backward()
    assert found.seconds == 5 * (1 + 2 + 4)
    assert clock.now == 5 * (100 + 300 + 400 + 1 + 2 + 4 + 200 * learnt)
    with torch.no_grad(), watch.Watch() as found:
        cell(Slow.apply(clock, 100, 200, first, first), h)
    assert found.seconds == 1
