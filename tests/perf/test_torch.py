"""The suite of PyTorch's models: what a training step of it is, that nothing wrong is timed, and its report."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
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


def test_case_names_are_unique_and_lengths_unsorted():
    names = {case.name for case in torch_suite.CASES}
    assert {"small/gru", "lm-lengths/lstm", "h128-l2/gru"} < names and len(names) == len(torch_suite.CASES)
    for case in torch_suite.CASES:
        assert case.passes == ("fit",) and ("-lengths/" in case.name) == (case.shortest is not None)
        assert case.shortest is None or (np.diff(case.lengths) > 0).any()


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
def test_only_one_model_is_accelerated_and_lengths_are_a_packed_sequence(name, kind, modules):
    torch_suite.subject(GRU, name, 1).run()
    torch_suite.subject(LSTM, name, 1).run()
    (module, x), (_, packed) = modules
    assert type(module) is kind and isinstance(packed, PackedSequence)
    np.testing.assert_array_equal(x, cases.problem(GRU, "train").x)
    padded, lengths = pad_packed_sequence(packed)
    np.testing.assert_array_equal(lengths, LSTM.lengths)
    np.testing.assert_array_equal(padded[:2], cases.problem(LSTM, "train").x[:2])


def test_training_step_learns():
    for name in torch_suite.MODELS:
        subject = torch_suite.subject(GRU, name, 1, learning_rate=0.01)
        losses = [float(subject.run().detach()) for _ in range(20)]
        assert losses == sorted(losses, reverse=True) and losses[-1] < 0.95 * losses[0]


def test_both_models_run_on_the_given_threads(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert torch_suite.Models("torch", 3).load(GRU) is None
    assert set(asked) == {3}


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


def test_wrong_or_failed_pair_has_no_figures(monkeypatch):
    def fail(*arguments):
        raise WorkerError("torch: no memory")

    for load, said in ((lambda *_: "wrong: loss", "wrong: loss"), (fail, "failed: torch: no memory")):
        monkeypatch.setattr(torch_suite, "Worker", lambda *_, load=load, **__: SimpleNamespace(call=load, close=int))
        row = torch_suite.measure(GRU, "fit", SimpleNamespace(threads=2), ["torch"], peak=1e9, seconds=0.1)
        assert (row["rnnkit"], row["torch"]) == (said, said) and "seconds" not in row
