"""The planted faults fit the sources that they are for, and their runner tells what is noticed from what is not."""

import os
import subprocess
import sys

import pytest
from mutants.__main__ import ROOT, chosen, known, report
from mutants.mutant import Mutant

ALL = known()


def test_names_are_unique():
    names = [mutant.name for mutant in ALL]
    assert len(set(names)) == len(names)
    assert len(ALL) > 30
    assert chosen(ALL, [ALL[0].name, ALL[-1].name]) == [ALL[0], ALL[-1]]


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_what_is_replaced_stands_there_once(mutant):
    assert (ROOT / mutant.path).read_text().count(mutant.before) == 1
    assert mutant.before != mutant.after
    assert mutant.tests


def test_the_named_tests_exist():
    tests = sorted({test for mutant in ALL for test in mutant.tests})
    if os.environ.get("CI") != "true":  # elsewhere a file whose library is not installed has none
        tests = [test for test in tests if "importorskip" not in (ROOT / test.split("::")[0]).read_text()]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *tests]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


SOURCE = "def double(x):\n    return x * 2\n"
TESTS = "from double import double\n\ndef test_double():\n    assert double(3) == 6\n"
PASSING = ("test_double.py::test_double",)


@pytest.mark.parametrize(
    ("before", "after", "tests", "verdict"),
    [
        ("x * 2", "x * 3", PASSING, "killed"),
        ("x * 2", "x + x", PASSING, "SURVIVED"),
        ("x * 3", "x * 4", PASSING, "BROKEN: what it replaces stands 0 times in double.py"),
        ("x", "y", PASSING, "BROKEN: what it replaces stands 2 times in double.py"),
        ("x * 2", "x * 3", ("test_double.py::test_triple",), "BROKEN: its tests fail without it"),
    ],
)
def test_the_runner_tells_what_survives(tmp_path, before, after, tests, verdict):
    (tmp_path / "double.py").write_text(SOURCE)
    (tmp_path / "test_double.py").write_text(TESTS)
    lines = []
    mutant = Mutant("doubled", "double.py", before, after, tests)
    killed = report([mutant], tmp_path, ["double.py", "test_double.py"], lambda line, flush=True: lines.append(line))
    assert killed == (verdict == "killed")
    assert lines[0].startswith(f"doubled: {verdict}, ")
    assert lines[1].startswith(f"{int(killed)} killed, {int(verdict == 'SURVIVED')} survived")
    assert lines[1].endswith(" broken") == verdict.startswith("BROKEN")
    assert (tmp_path / "double.py").read_text() == SOURCE
