"""The modules have the names that the reference has, and no others; the page about 1.0 has each of them once."""

import inspect
import re
from collections import Counter
from importlib import import_module

import pytest
from optional import needs
from public_names import PAGE, PUBLIC_OF, names_of, skip_outside_jax

import rnnkit
from rnnkit.commands import command_line

TEXT = PAGE.read_text()
AT_1_0 = PAGE.with_name("public-names.md").read_text()
FEATURES = PAGE.with_name("features.md").read_text()
NEEDS = {"rnnkit.torch": "torch", "rnnkit.sklearn": "sklearn", "rnnkit.keras": "keras", "rnnkit.jax": "jax"}
NEEDS["rnnkit.jax.flax"] = "flax"
(COMMANDS,) = (one.choices for one in command_line.build_parser()._actions if isinstance(one.choices, dict))


def names_in(module):
    """What `from module import *` gives; of rnnkit, which has no `__all__`, what it imports under its own name."""
    if module is not rnnkit:
        assert all(hasattr(module, name) for name in module.__all__)
        return module.__all__
    found = {name for name, thing in vars(rnnkit).items() if name[0] != "_" and not inspect.ismodule(thing)}
    return found - {"TYPE_CHECKING"}


def test_every_entry_of_the_page_is_read():
    assert sum(map(len, PUBLIC_OF.values())) == len(re.findall(r"^   (?!:)\S+$", TEXT, re.MULTILINE)) > 100
    assert list(PUBLIC_OF) == re.findall(r"^## (\S+)$", TEXT, re.MULTILINE)
    block = "```{eval-rst}\n.. currentmodule:: a.b\n.. autosummary::\n   :toctree: c\n\n   D\n   e\n```\n"
    assert names_of(block) == {"a.b": ["D", "e"]}


@pytest.mark.parametrize("module", PUBLIC_OF)
def test_modules_have_the_names_of_the_page(module):
    skip_outside_jax(module)
    if module in NEEDS:
        needs(NEEDS[module])
    assert sorted(names_in(import_module(module))) == sorted(PUBLIC_OF[module])  # and none of them twice


def test_help_names_all_modules():
    listed = re.search(r"^Import these explicitly: (.*?)\.  ", rnnkit.__doc__, re.MULTILINE | re.DOTALL)[1]
    assert {"rnnkit", *re.findall(r"rnnkit\.\w+", listed)} == {name for name in PUBLIC_OF if name.count(".") < 2}


def rows_at_1_0(columns):
    """The rows of the tables with so many columns, without their heads."""
    rows = [re.split(r" *\| *", line.strip("| ")) for line in AT_1_0.splitlines() if line.startswith("| ")]
    return [row for row in rows if len(row) == columns and row[-1] != "at 1.0"]


def test_page_about_1_0_has_each_name_and_command_once():
    found = {module: Counter() for module in PUBLIC_OF}
    for module, _, names, _ in rows_at_1_0(4):
        assert re.fullmatch(r"`\w+`( `\w+`)*", names), names
        found[module.strip("`")].update(re.findall(r"\w+", names))
    assert found == {module: Counter(names) for module, names in PUBLIC_OF.items()}
    named = " ".join(what for what, _ in rows_at_1_0(2) if what.startswith("commands"))
    assert sorted(re.findall(r"`(\w+)`", named)) == sorted(COMMANDS)


def test_names_that_may_change_until_1_0_say_why():
    states = [row[-1] for row in rows_at_1_0(4) + rows_at_1_0(2)]
    assert len(states) == AT_1_0.count("\n| ") - 2  # every row of both tables is read
    assert [state for state in states if not re.fullmatch(r"keeps|may change: \w.{20,}", state)] == []


def test_features_have_all_modules_commands_and_only_public_names():
    assert set(re.findall(r"`rnnkit (\w+)`", FEATURES)) == set(COMMANDS)
    named = set(re.findall(r"`(rnnkit[.\w]+)`", FEATURES))
    public = {f"{module}.{name}" for module, names in PUBLIC_OF.items() for name in names}
    assert named <= public | {*PUBLIC_OF}
    parts = {name if name in PUBLIC_OF else name.rpartition(".")[0] for name in named}
    assert parts == {*PUBLIC_OF}
