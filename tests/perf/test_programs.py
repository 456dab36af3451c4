"""The suite of programs: each runs plain and accelerated, results are compared, and what cannot run is named."""

import pickle
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_programs
import torch
from messages import says
from tiny_programs import CHAOTIC, FAILING, LOUD, MISSING, TINY, WRONG
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from perf import timing
from perf.__main__ import main
from perf.programs import converted, runner, suite, table, watch
from perf.programs.converted import Comparison, Converted
from perf.programs.runner import Outcome, Phase

RUN = ["run", "--suite", "programs", "--threads", "1", "--seconds", "0"]
LEFT = {"Own(4, 4)": "tiny_programs.Own.forward does not call super().forward"}


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch):
    """Collecting garbage takes long beside a test runner's objects."""
    monkeypatch.setattr(runner, "gc", SimpleNamespace(collect=int))


@pytest.fixture
def programs(monkeypatch):
    def give(*programs, **outcomes):
        monkeypatch.setattr(suite, "PROGRAMS", programs)
        if outcomes:
            monkeypatch.setattr(suite, "measure", lambda program, threads, _: outcomes[program.name.split("/")[1]]())

    return give


def outcome(**changed):
    phases = [Phase("fit", 3.0, 2.0, 0.51, [(f"GRU t{n}", 9 - n) for n in range(6)]), Phase("predict", 1.0, 2.0, 0, [])]
    return Outcome(phases, 3, LEFT, 1e-6, 1e-7)._replace(**changed)


def fail():
    raise timing.WorkerError("tiny/failing: RuntimeError: no such thing")


def test_program_runs_in_a_process_of_its_own(programs, capfd):
    programs(LOUD, MISSING)
    assert main(RUN) == 0
    out, err = capfd.readouterr()
    assert not err
    fit, predict, results, left, *calls, missing = out.splitlines()
    for line, phase in ((fit, "fit"), (predict, "predict")):
        assert line.startswith("tiny/gru ") and f" 1 threads  {phase} " in line and "x  recurrent " in line
    assert results.startswith("    results equal, ") and results.endswith("; 1 modules accelerated")
    assert left == f"    left: Own(4, 4): {LEFT['Own(4, 4)']}"
    assert calls[0] == f"    fit: 2 {tiny_programs.SIZES} train; 2 GRU t5 n2 i4 h4 l1 train"
    assert calls[1] == f"    predict: 1 {tiny_programs.SIZES} infer"
    assert missing == "tiny/missing: not installed: no_such_package, nor_this_one"


def test_outcome_is_printed(programs, capsys):
    programs(TINY, gru=outcome)
    assert main(RUN) == 0
    start = "tiny/gru                           1 threads "
    assert capsys.readouterr().out.splitlines() == [
        f"{start} fit      PyTorch   3.0000 s  rnnkit   2.0000 s   1.50x  recurrent  51%",
        f"{start} predict  PyTorch   1.0000 s  rnnkit   2.0000 s   0.50x  recurrent   0%",
        "    results equal, 1e-06 apart; 3 modules accelerated",
        f"    left: Own(4, 4): {LEFT['Own(4, 4)']}",
        "    fit: 9 GRU t0; 8 GRU t1; 7 GRU t2; 6 GRU t3; 9 of 2 other sizes",
    ]


def test_suite_goes_on_after_a_failure(programs, capsys):
    programs(FAILING, WRONG, TINY, failing=fail, wrong=lambda: outcome(deviation=2e-4), gru=outcome)
    assert main(RUN) == 1
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "failed: tiny/failing: RuntimeError: no such thing"
    assert "    results NOT EQUAL (PyTorch twice: 1e-07), 2e-04 apart; 3 modules accelerated" in rest
    assert rest[-5].startswith("tiny/gru")


@pytest.mark.parametrize(("chosen", "status"), [("*/gru", 0), ("*/gru,*/wrong", 1), ("*/failing", 1), ("*/missing", 1)])
def test_status_is_0_where_all_results_are_equal(programs, chosen, status):
    programs(TINY, WRONG, FAILING, MISSING, gru=outcome, wrong=lambda: outcome(deviation=float("nan")), failing=fail)
    assert main([*RUN, "--cases", chosen]) == status


def test_table_can_be_sent_to_processes():
    names = [program.name for program in table.PROGRAMS]
    assert len(set(names)) == len(names) >= 8
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


def test_unequal_results_are_noticed():
    found = runner.measure(WRONG, 0.0)
    assert not found.equal and found.deviation == pytest.approx(0.5)


def test_chaotic_programs_compare_parameters():
    assert runner.measure(CHAOTIC, 0.0).equal


def test_generators_are_seeded_before_each_phase():
    fits = []
    program = TINY._replace(
        fit=lambda: fits.append([torch.rand(1).item(), np.random.rand(), random.random()]),
        predict=lambda _: torch.rand(3).numpy(),
    )
    assert runner.measure(program, 0.0).noise == 0.0
    assert len(fits) == 8 and fits == [fits[0]] * 8


def test_failure_names_the_variant_and_phase():
    with pytest.raises(RuntimeError, match=says("accelerated predict: ValueError: no such thing")):
        runner.measure(FAILING, 0.0)


def test_unpickled_module_is_left():
    def fit():
        return pickle.loads(pickle.dumps(nn.ModuleList([nn.GRU(3, 4)])))

    found = runner.measure(TINY._replace(fit=fit), 0.0)
    reason = "it was not created in `accelerated`, but by a copy or a pickle"
    assert (found.accelerated, found.left) == (0, {"GRU(3, 4)": reason})


def test_phases_have_their_least_times(monkeypatch):
    first, fits, predictions = [9.0] * 4, [5.0, 6.0, 7.0, 3.0], [4.0, 8.0, 2.0, 9.0, 6.0, 5.0, 3.0, 7.0]
    times = iter([*first, *fits[:2], *predictions[:4], *fits[2:], *predictions[4:]])
    monkeypatch.setattr(runner._Variant, "_timed", lambda self, what, work, around=None: (0.0, next(times)))
    monkeypatch.setattr(runner, "repeated", lambda seconds: range(2))
    fit, predict = runner.measure(TINY, 0.0).phases
    assert (fit.plain, fit.own, predict.plain, predict.own) == (5.0, 3.0, 2.0, 5.0)


def test_repetitions_go_on_until_the_seconds_are_spent(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(runner, "perf_counter", lambda: next(clock))
    assert [len(list(runner.repeated(seconds))) for seconds in (0, 6)] == [3, 8]


NAN, INF = float("nan"), float("inf")
DEVIATIONS = [([[1.0, 2.0]], [[1.0, 2.5]], 0.2), ([[0.0], [-4.0]], [[0.0], [-8.0]], 0.5), ([[]], [[]], 0.0)]
DEVIATIONS += [([[NAN, 1.0]], [[NAN, 1.0]], 0.0), ([[NAN, 1.0]], [[1.0, 1.0]], INF), ([[1.0]], [[NAN]], INF)]
DEVIATIONS += [([[1.0]], [[1.0, 1.0]], INF), ([[1.0]], [[1.0], [1.0]], INF), ([[INF]], [[1.0]], INF)]


@pytest.mark.parametrize(("one", "other", "expected"), DEVIATIONS)
def test_deviation_is_relative_to_the_largest_value(one, other, expected):
    assert runner.deviation([np.array(a) for a in one], [np.array(a) for a in other]) == expected


def calls(package, own):
    return Converted("tiny/converted", ("torch",), partial(tuple, (package, own)))


ONES = partial(np.ones, 3)
CONVERTED = calls(ONES, ONES)


def test_converted_program_runs_in_a_process_of_its_own(programs, capfd):
    programs(CONVERTED, CONVERTED._replace(name="tiny/missing", needs=("torch", "no_such_package")))
    assert main(RUN) == 0
    out, err = capfd.readouterr()
    times, results, missing = out.splitlines()
    assert not err and times.startswith("tiny/converted ") and times.endswith("x")
    assert results == "    results equal, 0e+00 apart"
    assert missing == "tiny/missing: not installed: no_such_package"


@pytest.mark.parametrize(("deviation", "verdict"), [(1e-5, "equal"), (2e-3, "NOT EQUAL (limit 1e-03)")])
def test_comparison_is_printed(programs, capsys, deviation, verdict):
    programs(CONVERTED, converted=lambda: Comparison(3.0, 2.0, deviation, 1e-3))
    assert main(RUN) == (verdict != "equal")
    assert capsys.readouterr().out.splitlines() == [
        "tiny/converted                     1 threads  call     package   3.0000 s  rnnkit   2.0000 s   1.50x",
        f"    results {verdict}, {deviation:.0e} apart",
    ]


@pytest.mark.parametrize("close", [1e-4, 0.3])
def test_results_of_converted_programs_are_compared(close):
    program = calls(lambda: [np.ones(2), np.array([4.0])], lambda: (np.ones(2), np.array([5.0])))
    found = converted.measure(program._replace(close=close), 0.0, 1)
    assert found.deviation == 0.25 and found.equal == (close == 0.3)


@pytest.mark.parametrize(("failing", "name"), [(0, "package"), (1, "rnnkit")])
def test_failure_names_the_call(failing, name):
    both = [ONES, ONES]
    both[failing] = partial(float, "x")
    with pytest.raises(RuntimeError, match=says(f"{name}: ValueError: could not convert")):
        converted.measure(calls(*both), 0.0, 1)


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
    with pytest.raises(timing.WorkerError, match=says("slow:", "0.01 s")):
        worker.call("measure", TINY, 0.0, str(tmp_path), limit=0.01)
    worker.close()
    assert worker._process.exitcode == -9


GRU, LSTM, X = nn.GRU(3, 4), nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), torch.ones(5, 2, 3)
PACKED = pack_padded_sequence(X, torch.tensor([5, 1]))


@pytest.mark.parametrize(
    ("module", "x", "sizes"),
    [
        (GRU, X, "GRU t5 n2 i3 h4 l1"),
        (GRU, X[:, 0], "GRU t5 i3 h4 l1"),
        (GRU, PACKED, "GRU t5 n2 (packed) i3 h4 l1"),
        (LSTM, X, "LSTM t2 n5 i3 h4 l2 bi"),
        (nn.RNN(3, 4), X, "RNN t5 n2 i3 h4 l1"),
        (nn.LSTMCell(3, 4), X[0], "LSTMCell n2 i3 h4"),
        (nn.GRUCell(3, 4), X[0, 0], "GRUCell i3 h4"),
    ],
)
def test_calls_are_counted_by_their_sizes(module, x, sizes):
    with watch.Watch() as found:
        module(x)
        with torch.no_grad():
            module(x)
            module(x)
        nn.Linear(3, 3)(X)
    module(x)
    assert found.calls == {f"{sizes} train": 1, f"{sizes} infer": 2}


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


def test_hooks_are_removed_afterwards():
    with watch.Watch() as found:
        GRU(X)
    GRU(X)[0].sum().backward()
    assert found.calls.total() == 1 and not watch.hooks._global_forward_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in GRU.parameters())
