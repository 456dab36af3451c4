"""The list of costly tests: `costly.txt`."""

import subprocess
import sys
from pathlib import Path

import pytest
from costly import COSTLY, parts_of

ROOT = Path(__file__).parents[2]


def test_lines_give_the_part_of_a_test():
    text = "# why\n\nnightly a.py::b[c d]\nweekly a.py::e\n"
    assert parts_of(text) == {"a.py::b[c d]": "nightly", "a.py::e": "weekly"}
    assert set(COSTLY.values()) == {"nightly", "weekly"}


def collected(part, *files):
    options = "-q", "-n0", "--collect-only", "-p", "no:cacheprovider", "-m", part
    command = [sys.executable, "-m", "pytest", *options, *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_listed_tests_run_in_their_part_alone():
    listed = {node: part for node, part in COSTLY.items() if node.startswith("tests/cells/test_derivation.py")}
    found = {part: collected(part, "tests/cells/test_derivation.py") for part in ("nightly", "weekly")}
    found["default"] = collected("not nightly and not weekly", "tests/cells/test_derivation.py")
    assert listed and found["default"]
    for node, own in listed.items():
        assert [part for part, nodes in found.items() if node in nodes] == [own]


@pytest.mark.nightly
def test_listed_tests_exist():
    assert not COSTLY.keys() - collected("")
