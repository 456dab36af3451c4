"""Faults that `generate` does not make, written by hand: by file, what is wrong, a text that occurs once, and what
replaces it."""

from mutants.generate import Fault
from mutants.written_adapters import FAULTS as OF_ADAPTERS
from mutants.written_engine import FAULTS as OF_ENGINE

FAULTS = OF_ENGINE | OF_ADAPTERS


def all_faults(root):
    """Those of the files of the repository."""
    return [_located(root, path, *fault) for path, of_file in FAULTS.items() for fault in of_file]


def _located(root, path, kind, before, after):
    source = (root / path).read_text()
    assert source.count(before) == 1, f"{path}: {before!r} must stand there once, got {source.count(before)} times"
    start = source.index(before)
    line = source.count("\n", 0, start) + 1
    return Fault(path, "by hand", line, kind, start, start + len(before), before, after)
