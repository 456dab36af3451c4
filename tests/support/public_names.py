"""The public names, as the reference has them: `docs/reference/api.md` is the one list."""

import os
import re

import pytest
from repository import ROOT

PAGE = ROOT / "docs" / "reference" / "api.md"


def names_of(page):
    """Module -> its names, in the order of the page: those below each autosummary of the module."""
    found = {}
    block = r"^\.\. (?:current)?module:: (\S+)\n\n?\.\. autosummary::\n((?:^ .*\n|^\n)*)"
    for module, entries in re.findall(block, page, re.MULTILINE):
        found.setdefault(module, []).extend(re.findall(r"^   (\w+)$", entries, re.MULTILINE))
    return found


def skip_outside_jax(module):
    """Leave modules that import JAX to a process of their own (`tests/jax`), as JAX warns of every fork."""
    if module.startswith("rnnkit.jax") and "RNNKIT_TESTS_INSIDE_JAX" not in os.environ:
        pytest.skip("in a process of JAX's own")


PUBLIC_OF = names_of(PAGE.read_text())
PUBLIC = PUBLIC_OF["rnnkit"]
