"""The suite of PyTorch's models: what a training step of it is, that nothing wrong is timed, and its report."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from messages import says
from perf_runs import report_of_run
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

import rnnkit
import rnnkit.torch
from perf import cases, compare, report, torch_suite
from perf.cases import Case
from perf.timing import WorkerError

GRU = Case("tiny", rnnkit.RNNDescriptor("gru", 3, 5), seq_len=8, batch_size=4, passes=("fit",))
LSTM = Case("tiny-lengths", rnnkit.RNNDescriptor("lstm", 3, 5, 2, True), 8, 4, shortest=2, passes=("fit",))
FIGURES = ("rounds", "seconds", "gflops", "share_of_peak", "torch_seconds")
pytestmark = pytest.mark.usefixtures("torch_threads_as_before")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return report_of_run(tmp_path_factory, torch_suite, (GRU, LSTM), "--suite", "torch", "--threads", "2")


@pytest.mark.nightly
def test_run_times_both_models(measured):
    status, path = measured
    source = report.read(path)
    assert status == 0
    expected = [("2", "tiny/gru/fit"), ("2", "tiny-lengths/lstm/fit")]
    assert [(row["threads"], row["name"]) for row in source.rows] == expected
    for row in source.rows:
        assert (row["rnnkit"], row["torch"], row["onnxruntime"]) == (report.OK, report.OK, "")
        assert all(float(row[name]) > 0 for name in FIGURES) and int(row["rounds"]) >= 3
        assert 0 < float(row["torch_ratio_min"]) <= float(row["torch_ratio_median"]) <= float(row["torch_ratio_max"])
        assert float(row["gflops"]) == pytest.approx(float(row["gflop"]) / float(row["seconds"]), rel=1e-4)
    assert float(source.rows[0]["gflop"]) == pytest.approx(cases.flops(GRU, "train") / 1e9)
    assert {"machine", "torch", "fma_peak_float32_2_threads"} <= source.header.keys()
    assert "| tiny/gru/fit          |       2 |" in compare.tables(path)


def sizes(case):
    return case.seq_len, case.batch_size, case.desc.input_size, case.desc.hidden_size


def test_cases_have_known_sizes_and_unsorted_lengths():
    names = [case.name for case in torch_suite.CASES]
    families = [f"{family}{lengths}" for family in ("small", "lm", "odd") for lengths in ("", "-lengths")]
    expected = {f"{family}/{mode}" for family in families for mode in ("gru", "lstm", "rnn_tanh")}
    expected |= {"h64/gru", "h128-l2/gru", "h128-l2-lengths/gru", "h256-lengths/gru"}
    assert set(names) == expected and len(names) == len(expected)
    known = {case.name: sizes(case) for case in cases.CASES}
    for case in torch_suite.CASES:
        gru = (50, 16, case.desc.hidden_size, case.desc.hidden_size)
        assert sizes(case) == known.get(case.name.replace("-lengths", ""), gru)
        assert case.passes == ("fit",) and ("-lengths/" in case.name) == (case.shortest is not None)
        if case.shortest is not None:
            assert case.shortest == case.seq_len // 4 and (np.diff(case.lengths) > 0).any()  # unsorted


@pytest.fixture
def modules():
    """Every recurrent module that runs, with its input, until the test is over."""
    found = []

    def note(module, arguments):
        if isinstance(module, nn.RNNBase):
            found.append((module, arguments[0]))

    hook = nn.modules.module.register_module_forward_pre_hook(note)
    yield found
    hook.remove()


@pytest.mark.parametrize(("name", "kind"), [("rnnkit", rnnkit.torch.GRU), ("torch", nn.GRU)])
def test_only_one_model_is_accelerated(name, kind, modules):
    torch_suite.subject(GRU, name, 1).run()
    ((module, x),) = modules
    assert type(module) is kind
    np.testing.assert_array_equal(x, cases.problem(GRU, "train").x)


@pytest.mark.parametrize("name", torch_suite.MODELS)
def test_lengths_are_a_packed_sequence(name, modules):
    torch_suite.subject(LSTM, name, 1).run()
    ((_, x),) = modules
    assert isinstance(x, PackedSequence)
    padded, lengths = pad_packed_sequence(x)
    np.testing.assert_array_equal(lengths, LSTM.lengths)
    np.testing.assert_array_equal(padded[:2], cases.problem(LSTM, "train").x[:2])


@pytest.mark.parametrize("name", torch_suite.MODELS)
def test_training_step_learns(name):
    subject = torch_suite.subject(GRU, name, 1, learning_rate=0.01)
    losses = [float(subject.run().detach()) for _ in range(20)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.95 * losses[0]


def test_gradients_are_those_of_one_step():
    subject = torch_suite.subject(GRU, "torch", 1, learning_rate=0.0)
    first = {name: array.copy() for name, array in subject.results(subject.run()).items()}
    again = subject.results(subject.run())
    weights = [f"drnn.{block.name}" for block in rnnkit.weight_layout(GRU.desc)]
    assert set(first) == {"loss", *weights, "dreadout.weight", "dreadout.bias"}
    for name, array in first.items():
        np.testing.assert_array_equal(again[name], array)


def test_both_models_run_on_the_given_threads(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert torch_suite.Models("torch", 3).load(GRU) is None
    assert set(asked) == {3}


def test_model_that_cannot_be_accelerated_is_an_error(monkeypatch):
    done = rnnkit.torch.Acceleration((), {"rnn": "no reason"})
    monkeypatch.setattr(rnnkit.torch, "accelerate", lambda model: done)
    with pytest.raises(RuntimeError, match=says("accelerate", {"rnn": "no reason"})):
        torch_suite.subject(GRU, "rnnkit", 1)


@pytest.mark.parametrize("wrong", ["loss", "drnn.weight_hh_l0"])
def test_models_that_differ_in_the_second_step_are_not_timed(monkeypatch, wrong):
    right, learning = torch_suite.subject, []

    def subject(case, name, threads, learning_rate=None):
        learning.append(learning_rate)
        model, steps = right(case, name, threads, learning_rate), []

        def results(loss):
            found = model.results(loss)
            return found | {wrong: found[wrong] * (1 + 1e-3 * (name == "rnnkit" and len(steps) == 2))}

        return model._replace(run=lambda: steps.append(1) or model.run(), results=results)

    monkeypatch.setattr(torch_suite, "subject", subject)
    assert torch_suite.Models("torch", 1).load(GRU) == f"wrong: {wrong} deviates by 1.0e-03, more than 3e-05"
    assert learning == [0.0, 0.0]  # none was made to be timed


@pytest.fixture
def processes(monkeypatch):
    found = SimpleNamespace(asked=[], verdict=None, seconds={"rnnkit": [1.0, 2.0, 4.0], "torch": [2.0, 6.0, 4.0]})

    class Worker:
        def __init__(self, engine, threads, kind):
            found.asked.append((threads, kind))

        def call(self, method, argument):
            found.asked.append((method, argument))
            if isinstance(found.verdict, Exception):
                raise found.verdict
            return found.verdict if method == "load" else (found.seconds[argument].pop(0), 1.0)

        def close(self):
            found.asked.append("close")

    monkeypatch.setattr(torch_suite, "Worker", Worker)
    return found


def row_of(case):
    return torch_suite.measure(case, "fit", SimpleNamespace(threads=2), ["torch"], peak=1e9, seconds=0.1)


def test_models_take_turns_in_one_process_of_their_own(processes):
    row = row_of(LSTM)
    turns = [("time", "rnnkit"), ("time", "torch")]
    assert processes.asked == [(2, torch_suite.Models), ("load", LSTM), *turns * 3, "close"]
    assert (row["name"], row["threads"], row["rounds"]) == ("tiny-lengths/lstm/fit", 2, 3)
    assert (row["seconds"], row["torch_seconds"]) == (2.0, 4.0)
    assert [row[f"torch_ratio_{which}"] for which in ("min", "median", "max")] == [1.0, 2.0, 3.0]
    assert row["share_of_peak"] == cases.flops(LSTM, "train") / 2.0 / 1e9
    assert row.keys() <= set(report.COLUMNS)


@pytest.mark.parametrize(
    ("verdict", "said"), [("wrong: loss", "wrong: loss"), (WorkerError("torch: no memory"), "failed: torch: no memory")]
)
def test_wrong_or_failed_pair_has_no_figures(processes, verdict, said):
    processes.verdict = verdict
    row = row_of(GRU)
    assert processes.asked == [(2, torch_suite.Models), ("load", GRU), "close"]
    assert (row["rnnkit"], row["torch"]) == (said, said) and "seconds" not in row
