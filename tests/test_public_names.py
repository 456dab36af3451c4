"""The modules have the names that the reference has, and no others."""

import inspect
import os
import re
from importlib import import_module

import pytest
from public_names import PAGE, PUBLIC, PUBLIC_OF, names_of

import rnnkit

TEXT = PAGE.read_text()
NEEDS = {"rnnkit.torch": "torch", "rnnkit.sklearn": "sklearn"}


def names_in(module):
    """What `from module import *` gives; of rnnkit, which has no `__all__`, what it imports under its own name."""
    if module is not rnnkit:
        assert all(hasattr(module, name) for name in module.__all__)
        return module.__all__
    found = {name for name, thing in vars(rnnkit).items() if name[0] != "_" and not inspect.ismodule(thing)}
    return found - {"TYPE_CHECKING"}


def test_every_entry_of_the_page_is_read():
    """In another form than the reader knows a block would say nothing."""
    assert sum(map(len, PUBLIC_OF.values())) == len(re.findall(r"^   (?!:)\S+$", TEXT, re.MULTILINE)) > 100
    assert list(PUBLIC_OF) == re.findall(r"^## (\S+)$", TEXT, re.MULTILINE)
    assert names_of("```{eval-rst}\n.. currentmodule:: a.b\n.. autosummary::\n   :toctree: c\n\n   D\n   e\n```\n") == {
        "a.b": ["D", "e"]
    }


@pytest.mark.parametrize("module", PUBLIC_OF)
def test_the_names_of_a_module_are_those_of_the_page(module):
    if module in NEEDS and os.environ.get("CI") != "true":
        pytest.importorskip(NEEDS[module])
    assert sorted(names_in(import_module(module))) == sorted(PUBLIC_OF[module])  # and none of them twice


def test_help_names_all_modules():
    listed = re.search(r"^Import these explicitly: (.*?)\.  ", rnnkit.__doc__, re.MULTILINE | re.DOTALL)[1]
    assert {"rnnkit", *re.findall(r"rnnkit\.\w+", listed)} == set(PUBLIC_OF)


def test_a_module_without_a_list_has_names_of_its_own():
    assert {"LSTM", "load", "BackendError"} <= set(PUBLIC) == set(names_in(rnnkit))
