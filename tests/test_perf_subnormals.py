"""The suite of subnormal numbers."""

import os

import pytest
from messages import one_line_says

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")

from perf import subnormal_suite  # noqa: E402
from perf.__main__ import main  # noqa: E402
from perf.subnormal_suite import CASES, Network, Optimizer  # noqa: E402

pytestmark = pytest.mark.usefixtures("torch_threads_as_before")


def test_cases_are_timed(monkeypatch, capsys):
    monkeypatch.setattr(subnormal_suite, "CASES", (Network("GRU", 5, 2, 16), Optimizer("adam"), Optimizer("momentum")))
    monkeypatch.setattr(subnormal_suite, "_WEIGHTS", 100)
    assert main(["run", "--suite", "subnormals", "--threads", "1", "--seconds", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["gru-t5-n2-h16", "adam", "momentum"]


def test_cases_have_different_names():
    assert len({case.name for case in CASES}) == len(CASES) == 8


def test_wrong_results_are_not_timed(monkeypatch):
    monkeypatch.setattr("rnnkit.torch.accelerate", lambda module: module.weight_hh_l0.data.zero_())
    with pytest.raises(AssertionError, match="not close"):
        subnormal_suite.measure(Network("GRU", 5, 2, 16), 1, 0)


def test_unknown_case(capsys):
    assert main(["run", "--suite", "subnormals", "--threads", "1", "--cases", "nothing"]) == 2
    assert one_line_says(capsys.readouterr().err, "perf:", "--cases", "rnn-t200-n16-h128", "'nothing'")
