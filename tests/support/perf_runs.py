"""What tests of the performance harness share: the results of a subject, and the report of a run."""

import pytest

from perf.__main__ import main


def second_results(subject):
    """What is left by a second call, which has memory of the first."""
    subject.run()
    return {name: array for name, array in subject.results(subject.run()).items() if array is not None}


def report_of_run(tmp_path_factory, suite, cases, *options):
    """Run a suite with these cases, each engine in its process; return the exit status and the report's path."""
    path = tmp_path_factory.mktemp("perf") / "a.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "CASES", cases)
        return main(["run", *options, "--seconds", "0.01", "--out", str(path)]), path
