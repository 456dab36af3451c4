"""The suite of layer norm and noise: cells against plain ones and against loops over the steps."""

import os

import pytest
from messages import one_line_says

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
from combinations import nightly  # noqa: E402

from perf import norm_suite  # noqa: E402
from perf.__main__ import main  # noqa: E402
from perf.norm_suite import CASES, KINDS, Case  # noqa: E402

pytestmark = pytest.mark.usefixtures("torch_threads_as_before")


@pytest.mark.parametrize("kind", ["dropout-lstm", *(nightly(kind) for kind in KINDS if kind != "dropout-lstm")])
def test_cases_are_timed(kind, monkeypatch, capsys):
    """Each loop has the results of its cell, or it is an error."""
    monkeypatch.setattr(norm_suite, "CASES", (Case(kind, 4, 2, 16),))
    assert main(["run", "--suite", "norms", "--cases", f"{kind}-*", "--threads", "1", "--seconds", "0"]) == 0
    assert capsys.readouterr().out.split()[0] == f"{kind}-t4-n2-h16"


def test_every_case_is_there_once():
    assert len({case.name for case in CASES}) == len(CASES) == 20


def test_wrong_results_are_not_timed(monkeypatch):
    loop = norm_suite._dropout_lstm
    monkeypatch.setitem(norm_suite._LOOPS, "dropout-lstm", lambda module, x: loop(module, x + 1))
    with pytest.raises(AssertionError, match="not close"):
        norm_suite.measure(Case("dropout-lstm", 4, 2, 16), 1, 0)


def test_a_pattern_without_cases(capsys):
    assert main(["run", "--suite", "norms", "--cases", "nothing", "--threads", "1"]) == 2
    assert one_line_says(capsys.readouterr().err, "perf: --cases", "layer-norm-lstm-t50-n8-h64", "'nothing'")
