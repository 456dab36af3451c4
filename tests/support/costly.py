"""Tests that cost too much for their part: most compile kernels that no other test needs."""

from pathlib import Path

FILE = Path(__file__).parents[1] / "costly.txt"


def parts_of(text):
    """Return the part of each test that a text lists, a line each: "nightly" or "weekly", and the test's id."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {node: part for part, node in (line.split(" ", 1) for line in lines)}


COSTLY = parts_of(FILE.read_text())
