"""What a user's cell is known by: its machine code by all that it computes, its files by all that it says."""

import linecache
import sys
import types
from typing import NamedTuple

import pytest
from edited_cells import EDITS, MODULE, defined, result
from hypothesis import given
from hypothesis import strategies as st
from messages import says

import rnnkit
from rnnkit.cells import Activation, Affine, LeakyRelu, cell, forward, gradient, tanh, value
from rnnkit.descriptor.saved import descriptor_json, descriptor_of
from rnnkit_kernels.cells.activations import USER_ACTIVATIONS
from rnnkit_kernels.cells.source import code_key, source_of
from rnnkit_kernels.cells.uses import Unresolved

SAME = [
    ("import consts\n", "import consts\n\n# nothing\n"),
    ("from math import sin as wave\n", "from __future__ import annotations\nfrom math import sin as wave\n"),
    ("    def output(self, a):\n", '    def output(self, a):\n        """Say something."""\n'),
    ("def bent(x, by=START", "def bent(x: float, by: float = START"),
    ("RATE * a", "(RATE * a)"),
]


@given(st.lists(st.sampled_from(EDITS), unique=True), st.sampled_from(EDITS))
def test_edit_of_the_equations_changes_key_and_source(edits, last):
    before, after = ({one for one in edits if one != last}, {*edits, last})
    before, after = defined(before), defined(after)
    assert result(before) != result(after)
    assert code_key(before) != code_key(after)
    assert source_of(before) != source_of(after)


@pytest.mark.parametrize("edit", SAME)
def test_edit_of_other_text_keeps_the_source(edit):
    before, after = defined([]), defined([edit])
    assert source_of(before) == source_of(after)


def test_functions_on_one_line_have_other_keys_and_no_source():
    text = "from math import pi\n" + MODULE.replace("around(1.5), around(1.75)", "(lambda v: 2 * v), lambda v: 3 * v")
    first, second = defined([], text), defined([("made = one", "made = two")], text)
    assert code_key(first) != code_key(second) and code_key(first) == code_key(defined([], text))
    with pytest.raises(Unresolved, match=says("", "code", "source", "<lambda> (<module ", "remove")):
        source_of(first)


def test_module_under_a_local_name_is_refused():
    """Its attributes are not followed, so a key without them would not change with them."""
    kind = defined([("return factor * x + consts.SCALE", "own = consts; return factor * x + own.SCALE")])
    with pytest.raises(Unresolved, match=says("", "consts", "module")):
        code_key(kind)


def test_source_that_is_not_the_code_is_refused():
    """As where a `.pyc` of an earlier text is taken."""
    code = compile(MODULE, "<stale>", "exec")
    with pytest.MonkeyPatch.context() as patch:
        lines = MODULE.replace("- 0.01", "- 0.02").splitlines(True)
        patch.setitem(linecache.cache, "<stale>", (0, None, lines, "<stale>"))
        patch.setitem(sys.modules, "consts", types.ModuleType("consts"))
        sys.modules["consts"].SCALE = 4.0
        exec(code, names := {"__name__": "module"})
        with pytest.raises(Unresolved, match=says("", "code", "source", "output (<stale>:", "remove")):
            source_of(names["Mine"])
    assert code_key(names["Mine"]) == code_key(defined([]))


def test_edit_after_the_definition_keeps_the_source():
    kind = defined([])
    name, before = kind.declaration.stages[0].function.__code__.co_filename, source_of(kind)
    linecache.cache[name] = 0, None, ["nothing\n"], name
    assert source_of(kind) == before


FACTOR = 0.5


def bent(x):
    return FACTOR * tanh(x)


@cell(gates="a", vectors="p")
class Kept(NamedTuple):
    """A cell of which files are there: its text stays as it is."""

    scale: float = 2.0
    last: Activation = Affine(0.5)

    @forward("a h")
    def output(self, a, p):
        h = self.scale * value(self.last, a) + p
        return bent(a), h

    @gradient("da dp")
    def back(self, dh):
        return dh, dh


@Activation.register
class Bent(NamedTuple):
    """An activation of one's own."""

    alpha: float

    def value(self, x):
        return self.alpha * bent(x)

    def slope(self, y):
        return 1 - y * y


SOURCE = "2:5f37bbf2f5286284fab820ab8d3d2d43b4c0ca96344a87d3106fc7369312de32"  # 3.11, 3.12 and 3.13 say so
KEPT = rnnkit.RNNDescriptor(Kept, 3, 4)


def test_source_is_the_same_in_all_versions():
    assert SOURCE in descriptor_json(KEPT)
    assert descriptor_of(descriptor_json(KEPT), Kept) == KEPT


def test_other_source_is_taken_when_asked_for():
    text = descriptor_json(KEPT).replace(SOURCE, "2:0")
    with pytest.raises(ValueError, match=says("", "Kept", "source 2:0", SOURCE[:8])):
        descriptor_of(text, Kept)
    assert descriptor_of(text, Kept, check_source=False) == KEPT


def test_cell_without_a_source_is_loaded_when_asked_for(tmp_path):
    text = MODULE.replace("import consts\n", "").replace("consts.SCALE", "4.0")
    exec(compile(text, "<typed>", "exec"), names := {"__name__": "module"})
    kind = names["Mine"]
    with pytest.warns(UserWarning, match=says("save: Mine", "output (<typed>:", "check_source=False")):
        rnnkit.Network(kind, 3, 4, seed=0).save(tmp_path / "net")
    with pytest.raises(ValueError, match=says("", "saved", "source", "Mine", "output (<typed>:")):
        rnnkit.load(tmp_path / "net", kind)
    assert rnnkit.load(tmp_path / "net", kind, check_source=False).desc == rnnkit.RNNDescriptor(kind, 3, 4)


def test_own_activation_is_saved_with_its_source(monkeypatch):
    desc = rnnkit.RNNDescriptor(Kept(last=Bent(0.5)), 3, 4)
    text = descriptor_json(desc)
    assert descriptor_of(text, Kept) == desc
    assert desc != rnnkit.RNNDescriptor(Kept(last=LeakyRelu(0.5)), 3, 4)  # of the same number
    with pytest.raises(ValueError, match=says("", "Bent", "source 2:0", source_of(Bent)[:8])):
        descriptor_of(text.replace(source_of(Bent), "2:0"), Kept)
    monkeypatch.delitem(USER_ACTIVATIONS, "Bent")
    with pytest.raises(ValueError, match=says("", "activation Bent", "import")):
        descriptor_of(text, Kept)


def test_source_of_an_activation_holds_its_helpers(monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", 0.25)
    again = Activation.register(type("Bent", (NamedTuple("Bent", [("alpha", float)]),), dict(vars(Bent))))
    assert code_key(again) != code_key(Bent) and source_of(again) != source_of(Bent)


def test_class_that_is_no_activation_is_refused():
    with pytest.raises(TypeError, match=says("register: kind", "NamedTuple", "value", "<class 'int'>")):
        Activation.register(int)
