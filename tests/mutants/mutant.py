"""What is planted: a text in a file replaced by another, and the tests of which at least one must then fail."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """`before`, which stands in the file `path` exactly once, becomes `after`."""

    name: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]  # as pytest takes them, from the root: "tests/test_perf.py::test_x"


def faults_in(path, *faults):
    """Mutants of one file, each of (name, before, after, tests)."""
    return tuple(Mutant(name, path, *fault) for name, *fault in faults)
