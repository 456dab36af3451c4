"""The suite of programs: each runs plain and accelerated, results are compared, and what cannot run is named."""

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from messages import one_line_says, says

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
import tiny_programs  # noqa: E402
from tiny_programs import CHAOTIC, FAILING, LOUD, MISSING, TINY, WRONG  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402

from perf import timing  # noqa: E402
from perf.__main__ import main  # noqa: E402
from perf.programs import runner, suite, table, watch  # noqa: E402
from perf.programs.runner import Outcome, Phase  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
RUN = ["run", "--suite", "programs", "--threads", "1", "--seconds", "0"]
LEFT = {"Own(4, 4)": "tiny_programs.Own.forward does not call super().forward"}


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch):
    """It takes long beside a test runner's objects."""
    monkeypatch.setattr(runner, "gc", SimpleNamespace(collect=int))


@pytest.fixture
def programs(monkeypatch):
    """The table has others."""

    def give(*programs, **outcomes):
        monkeypatch.setattr(suite, "PROGRAMS", programs)
        if outcomes:
            monkeypatch.setattr(suite, "measure", lambda program, threads, _: outcomes[program.name.split("/")[1]]())

    return give


def outcome(**changed):
    phases = [Phase("fit", 3.0, 2.0, 0.51, [(f"GRU t{n}", 9 - n) for n in range(6)]), Phase("predict", 1.0, 2.0, 0, [])]
    return Outcome(phases, 3, LEFT, 1e-6, 1e-7)._replace(**changed)


def test_a_program_runs_in_a_process_of_its_own(programs, capfd):
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


def test_what_comes_out_is_printed(programs, capsys):
    programs(TINY, gru=outcome)
    assert main(RUN) == 0
    assert capsys.readouterr().out.splitlines() == [
        "tiny/gru                           1 threads  fit      PyTorch   3.0000 s  rnnkit   2.0000 s   1.50x  "
        "recurrent  51%",
        "tiny/gru                           1 threads  predict  PyTorch   1.0000 s  rnnkit   2.0000 s   0.50x  "
        "recurrent   0%",
        "    results equal, 1e-06 apart; 3 modules accelerated",
        f"    left: Own(4, 4): {LEFT['Own(4, 4)']}",
        "    fit: 9 GRU t0; 8 GRU t1; 7 GRU t2; 6 GRU t3; 9 of 2 other sizes",
    ]


def test_the_suite_goes_on_after_a_failure(programs, capsys):
    def fail():
        raise timing.WorkerError("tiny/failing: RuntimeError: no such thing")

    programs(FAILING, WRONG, TINY, failing=fail, wrong=lambda: outcome(deviation=2e-4), gru=outcome)
    assert main(RUN) == 1
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "failed: tiny/failing: RuntimeError: no such thing"
    assert "    results NOT EQUAL (PyTorch twice: 1e-07), 2e-04 apart; 3 modules accelerated" in rest
    assert rest[-5].startswith("tiny/gru")


@pytest.mark.parametrize(("chosen", "status"), [("*/gru", 0), ("*/gru,*/wrong", 1), ("*/failing", 1), ("*/missing", 1)])
def test_the_status_says_whether_all_that_ran_had_equal_results(programs, chosen, status):
    def fail():
        raise timing.WorkerError("failed")

    programs(TINY, WRONG, FAILING, MISSING, gru=outcome, wrong=lambda: outcome(deviation=float("nan")), failing=fail)
    assert main([*RUN, "--cases", chosen]) == status


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--cases", "nothing/*"], ["--cases", table.PROGRAMS[0].name, "'nothing/*'"]),
        (["--out", "a.csv"], ["--suite programs", "--out"]),
        (
            ["--device", "cuda", "--tf32", "--against", "torch", "--passes", "infer"],
            ["--suite programs", "--device, --tf32, --against, --passes"],
        ),
    ],
)
def test_what_the_suite_does_not_have_is_an_error(arguments, facts, capsys):
    assert main([*RUN, *arguments]) == 2
    assert one_line_says(capsys.readouterr().err, "perf:", *facts)


def test_the_table():
    names = [program.name for program in table.PROGRAMS]
    assert len(set(names)) == len(names) >= 8
    assert pickle.loads(pickle.dumps(table.PROGRAMS)) is not None
    # Neither PyTorch nor a package is imported where programs are only chosen.
    code = "import sys; from perf.programs import suite; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"torch", *(name for program in table.PROGRAMS for name in program.needs)}


def test_modules_run_on_the_engine_in_one_of_two(monkeypatch):
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


def test_parameters_stand_for_chaotic_predictions():
    assert runner.measure(CHAOTIC, 0.0).equal


def test_generators_are_seeded_before_each_phase():
    fits = []
    program = TINY._replace(
        fit=lambda: fits.append([torch.rand(1).item(), np.random.rand(), random.random()]),
        predict=lambda _: torch.rand(3).numpy(),
    )
    assert runner.measure(program, 0.0).noise == 0.0
    assert len(fits) == 8 and fits == [fits[0]] * 8


def test_a_failure_says_where_it_was():
    with pytest.raises(RuntimeError, match=says("accelerated predict: ValueError: no such thing")):
        runner.measure(FAILING, 0.0)


def test_a_copy_that_is_made_from_a_pickle_is_left():
    def fit():
        return pickle.loads(pickle.dumps(nn.ModuleList([nn.GRU(3, 4)])))

    found = runner.measure(TINY._replace(fit=fit), 0.0)
    reason = "it was not created in `accelerated`, but by a copy or a pickle"
    assert (found.accelerated, found.left) == (0, {"GRU(3, 4)": reason})


def test_the_least_times_count(monkeypatch):
    first, fits, predictions = [9.0] * 4, [5.0, 6.0, 7.0, 3.0], [4.0, 8.0, 2.0, 9.0, 6.0, 5.0, 3.0, 7.0]
    times = iter([*first, *fits[:2], *predictions[:4], *fits[2:], *predictions[4:]])
    monkeypatch.setattr(runner._Variant, "_timed", lambda self, what, work, around=None: (0.0, next(times)))
    monkeypatch.setattr(runner, "_repeated", lambda seconds: range(2))
    fit, predict = runner.measure(TINY, 0.0).phases
    assert (fit.plain, fit.own, predict.plain, predict.own) == (5.0, 3.0, 2.0, 5.0)


def test_repetitions_go_on_until_the_seconds_are_spent(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(runner, "perf_counter", lambda: next(clock))
    assert [len(list(runner._repeated(seconds))) for seconds in (0, 6)] == [3, 8]


NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([[1.0, 2.0]], [[1.0, 2.5]], 0.2), ([[0.0], [-4.0]], [[0.0], [-8.0]], 0.5), ([[NAN, 1.0]], [[NAN, 1.0]], 0.0),
        ([[NAN, 1.0]], [[1.0, 1.0]], np.inf), ([[1.0]], [[NAN]], np.inf), ([[1.0]], [[1.0, 1.0]], np.inf),
        ([[1.0]], [[1.0], [1.0]], np.inf), ([[np.inf]], [[1.0]], np.inf), ([[]], [[]], 0.0),
    ],
)  # fmt: skip
def test_deviation_is_relative_to_the_largest_value(one, other, expected):
    assert runner.deviation([np.array(a) for a in one], [np.array(a) for a in other]) == expected


def test_a_process_that_takes_too_long_is_killed(tmp_path):
    worker = timing.Worker("slow", 1, kind=runner.Runner)
    with pytest.raises(timing.WorkerError, match=says("slow:", "0.01 s")):
        worker.call("measure", TINY, 0.0, str(tmp_path), limit=0.01)
    worker.close()
    assert worker._process.exitcode == -9


GRU, LSTM, X = nn.GRU(3, 4), nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), torch.ones(5, 2, 3)


@pytest.mark.parametrize(
    ("module", "x", "sizes"),
    [
        (GRU, X, "GRU t5 n2 i3 h4 l1"), (GRU, X[:, 0], "GRU t5 i3 h4 l1"),
        (LSTM, X, "LSTM t2 n5 i3 h4 l2 bi"), (nn.RNN(3, 4), X, "RNN t5 n2 i3 h4 l1"),
        (GRU, pack_padded_sequence(X, torch.tensor([5, 1])), "GRU t5 n2 (packed) i3 h4 l1"),
        (nn.LSTMCell(3, 4), X[0], "LSTMCell n2 i3 h4"), (nn.GRUCell(3, 4), X[0, 0], "GRUCell i3 h4"),
    ],
)  # fmt: skip
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
    """Lets the clock go on."""

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
def test_seconds_are_those_of_recurrent_modules_forward_and_backward(monkeypatch, learnt):
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


def test_nothing_is_watched_afterwards():
    with watch.Watch() as found:
        GRU(X)
    GRU(X)[0].sum().backward()
    assert found.calls.total() == 1 and not watch.hooks._global_forward_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in GRU.parameters())
