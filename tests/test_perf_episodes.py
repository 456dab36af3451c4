"""The suite of episodes: one call with resets against a loop over the steps."""

import os

import pytest
from messages import one_line_says

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")

from perf import episode_suite  # noqa: E402
from perf.__main__ import main  # noqa: E402
from perf.episode_suite import CASES, Episodes  # noqa: E402

pytestmark = pytest.mark.usefixtures("torch_threads_as_before")


def test_cases_are_timed(monkeypatch, capsys):
    monkeypatch.setattr(episode_suite, "CASES", (Episodes(2, 16, 5), Episodes(1, 16, 20)))
    assert main(["run", "--suite", "episodes", "--cases", "lstm-n*-h16-*", "--threads", "1", "--seconds", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["lstm-n2-h16-e5", "lstm-n1-h16-e20"]


def test_every_case_is_there_once():
    assert len({case.name for case in CASES}) == len(CASES) == 27


def test_wrong_results_are_not_timed(monkeypatch):
    """The loop must reset the states where the call does."""
    loop = episode_suite._loop
    monkeypatch.setattr(episode_suite, "_loop", lambda module, x, resets: loop(module, x, 0 * resets))
    with pytest.raises(AssertionError, match="not close"):
        episode_suite.measure(Episodes(2, 16, 5), 1, 0)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--cases", "nothing"], ["--cases", "lstm-n1-h64-e5", "'nothing'"]),
        (["--out", "a.csv"], ["--suite episodes", "--out"]),
        (["--against", "torch"], ["--suite episodes", "--against"]),
    ],
)
def test_what_the_suite_does_not_have_is_an_error(arguments, facts, capsys):
    assert main(["run", "--suite", "episodes", "--threads", "1", *arguments]) == 2
    assert one_line_says(capsys.readouterr().err, "perf:", *facts)
