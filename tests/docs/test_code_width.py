"""Code in the docs, the README and the examples fits the site's column: 76 characters."""

import re

import pytest
from guides import PAGES, README
from repository import ROOT

WIDTH = 76  # what the column of the site shows without scrolling
TEXTS = {"README": README, "CHANGELOG": ROOT / "CHANGELOG.md", "CONTRIBUTING": ROOT / "CONTRIBUTING.md", **PAGES}
AS_PRINTED = {  # lines of output that rnnkit prints wider
    "explanation/engine": 3,
    "how-to/compress": 1,
    "how-to/own-cells": 4,
    "README": 1,  # the command that .ci/run finds by its line
}


def code_of(text):
    """The lines of code in Markdown, with their numbers: in fences that are no directives, and indented."""
    fence, before = None, ""
    for number, line in enumerate(text.splitlines(), 1):
        opened = re.match(r"( *)(```+|~~~+) *([^`]*)$", line)
        if fence is None and opened:
            fence, is_code = opened[2], not opened[3].startswith("{")
        elif fence is not None and line.strip() == fence:
            fence = None
        elif fence is not None:
            if is_code:
                yield number, line
        elif line.startswith("    ") and (not before.strip() or before.startswith("    ")):
            yield number, line.removeprefix("    ")
        before = line


def too_wide(lines):
    return [f"{number}: {line}" for number, line in lines if len(line) > WIDTH]


def test_code_is_found():
    text = "text\n\n    a\n\n- one\n  more\n\n```py\nb\n```\n```{toctree}\nc\n```\n```console\n$ d\n```\ntext\n    e\n"
    assert [line.strip() for _, line in code_of(text)] == ["a", "b", "$ d"]
    assert too_wide([(1, "x" * 76), (2, "x" * 77)]) == [f"2: {'x' * 77}"]


@pytest.mark.parametrize("name", TEXTS)
def test_code_of_pages_fits(name):
    found = too_wide(code_of(TEXTS[name].read_text()))
    assert len(found) == AS_PRINTED.get(name, 0), found


def test_programs_in_c_fit():
    """Ruff looks at those in Python."""
    paths = [*(ROOT / "examples").rglob("*.c")]
    assert paths and [too_wide(enumerate(path.read_text().splitlines(), 1)) for path in paths] == [[]] * len(paths)
