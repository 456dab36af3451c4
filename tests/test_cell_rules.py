"""A mistake in a cell is one error where the cell is declared, and says where: cell, stage, file and line."""

import inspect
from collections import namedtuple
from typing import NamedTuple

import pytest
from messages import says

from rnnkit.cells import CellError, Gate, Vector, cell, forward, gradient
from rnnkit_kernels.cells.rules import parameter_types


def declared(*stages, fields=(), base=NamedTuple, **said):
    """Declare a cell named Mine with these stages."""
    kind = NamedTuple("Mine", fields) if base is NamedTuple else type("Mine", (base,), {})
    for stage in stages:
        setattr(kind, stage.function.__name__, stage)
    return cell(**{"gates": "a"} | said)(kind)


@forward("a h")
def output(self, a):
    return a, a


@gradient("da")
def back(self, dh):
    return dh


@forward("a h")
def unknown(self, a):
    b = a + 1
    return b, tannh(b)  # noqa: F821


@forward("a h")
def shaped(self, a):
    return a, a * a.shape[0]


@forward("a h")
def one_result(self, a):
    return a


@forward("a h")
def text(self, a):
    return a, "a"


@forward("a h kept")
def undeclared(self, a):
    return a, a, a


@forward("a h")
def reads_unknown(self, a, b):
    return a, b


@forward("h h")
def twice(self, a):
    return a, a


@forward("a")
def no_h(self, a):
    return a


@forward("a h")
def defaults(self, a=1):
    return a, a


@forward("a h")
def any_number(self, a, *others):
    return a, a


@forward("a h")
def any_name(self, a, **others):
    return a, a


@forward("a h")
def one_by_one(self, a):
    yield a


@forward("a h")
def by_name(self, a, *, other):
    return a, a


@forward("a h")
def reads_h_prev(self, a, h_prev):
    return a, a + h_prev


@forward("n h")
def second(self, n):
    return n, n


@forward("m")
def multiplied(self, a):
    return a


@forward("h")
def circle(self, a):
    return a


@forward("m h")
def again(self, n):
    return n, n


@gradient("da dn")
def both(self, dh):
    return dh, dh


@forward("c h")
def state(self, a, c_prev):
    return c_prev, a


@gradient("da dc_prev dc")
def after(self, dh, dc):
    return dh, dc, dc


@gradient("da dc_prev")
def after_one(self, dh, dc):
    return dh, dc


@gradient("da")
def before(self, dc):
    return dc


def line(stage, text):
    """Number of the line of a stage that holds the text."""
    lines, first = inspect.getsourcelines(stage.function)
    return first + next(number for number, one in enumerate(lines) if text in one)


def here(stage, text="@"):
    return f"stage {stage.function.__name__} (test_cell_rules.py:{line(stage, text)})"


@pytest.mark.parametrize(("declare", "where", "facts"), [
    (lambda: declared(output, back, base=object), "its class", ["NamedTuple", "parameters"]),
    (lambda: declared(output, back, fields=[("p", str)]), "its parameter p", ["bool", "int", "float", "Activation"]),
    (lambda: declared(output, back, gates=""), "gates", ["none"]),
    (lambda: declared(output, back, gates="a a"), "the name 'a'", ["twice"]),
    (lambda: declared(output, back, states="a"), "the name 'a'", ["gate", "state"]),
    (lambda: declared(output, back, gates=["a", Gate("n", "n")], states="n"), "the name 'n'", ["gate", "state"]),
    (lambda: declared(output, back, gates=["a", Gate("n", apart="q")], vectors="q"),
     "the name 'q'", ["product of R", "vector"]),
    (lambda: declared(output, back, scalars="p", inputs="p"), "the name 'p'", ["scalar", "side input"]),
    (lambda: declared(output, back, states="c c"), "the name 'c'", ["twice"]),
    (lambda: declared(output, back, vectors="h"), "a name", ["identifier", "h", "self", "'h'"]),
    (lambda: declared(output, back, vectors="weight_ih"),
     "the name 'weight_ih'", ["reserved", "weight_hh", "weight_hr", "bias_ih", "bias_hh"]),
    (lambda: declared(output, back, slots="da"), "the name 'da'", ["reserved", "gradient of a"]),
    (lambda: declared(output, back, slots="c_prev"), "the name 'c_prev'", ["reserved", "c before the step"]),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", "a")]), "gate b", ["h", "'a'", "a is a gate"]),
    (lambda: declared(output, back, gates=[Gate("a", "h_prev")]), "gate a", ["'h_prev'", "h"]),
    (lambda: declared(output, back, gates=[Gate("a", "c_prev")], states="m"),
     "gate a", ["h", "'c_prev'", 'states="m c"']),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", "m"), Gate("d", "n")]),
     "a forward stage", ["m", "R", "b", "none"]),
    (lambda: declared(output, back, gates=[Gate("a", multiplies="m", apart="q")]),
     "a forward stage", ["m", "R", "q", "none"]),
    (lambda: declared(output, back, gates=[Gate("a", heads=2), Gate("b")]), "gate b", ["2 heads", 1]),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", multiplies=None, heads=2)]),
     "gate b", ["rows of R", "multiplies=None", "heads=2"]),
    (lambda: declared(output, back, gates=[Gate("a", input=False)]), "gates", ["rows of W", "input=False"]),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", multiplies=None, input=False)]),
     "gate b", ["W", "R", "multiplies=None", "apart=None", "input=False"]),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", multiplies=None, apart="q")]),
     "gate b", ["R", "multiplies=None", "apart='q'"]),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", apart="q", input=False)]),
     "gate b", ["rows of W", "R", "apart='q'", "input=False"]),
    (lambda: declared(multiplied, output, gates=[Gate("a"), Gate("n", "m")]), "a forward stage", ["n", "none"]),
    (lambda: declared(multiplied, circle, gates=[Gate("a", "m")]),
     here(multiplied), ["m", "R", "a", "ends with m", "second stage that reads a"]),
    (lambda: declared(second, multiplied, back, gates=[Gate("a"), Gate("n", "m")]),
     "a forward stage", ["m", "R", "n", here(multiplied)]),
    (lambda: declared(multiplied, again, gates=[Gate("a"), Gate("n", "m")]), here(again), ["m", "R", "another"]),
    (lambda: declared(undeclared), here(undeclared), ["gates", "states", "h", "later stage", "'kept'"]),
    (lambda: declared(no_h, back), "a forward stage", ["h", "none"]),
    (lambda: declared(output, back, states="c"), "a forward stage", ["c", "none"]),
    (lambda: declared(output, back, slots="kept"), "a forward stage", ["kept", "none"]),
    (lambda: declared(output, back, vectors="p"), "a gradient stage", ["dp", "none"]),
    (lambda: declared(state, back, states="c"), "a gradient stage", ["dc_prev", "none"]),
    (lambda: declared(reads_h_prev, back), "a gradient stage", ["dh_prev", "none"]),
    (lambda: declared(second, both, gates=[Gate("a"), Gate("n", "m")]), "a forward stage", ["m", "R", "n", "none"]),
    (lambda: declared(multiplied, second, back, gates=[Gate("a"), Gate("n", "m")]),
     "a gradient stage", ["dn", "none"]),
    (lambda: declared(undeclared, back), here(undeclared), ["gate", "slot", "state", "h", "'kept'", 'slots="kept"']),
    (lambda: declared(reads_unknown, back), here(reads_unknown), ["a, h_prev", "'b'"]),
    (lambda: declared(output, before, states="c"), "a forward stage", ["c", "none"]),
    (lambda: declared(output, before), here(before), ["a, dh, h_prev", "'dc'"]),
    (lambda: declared(state, before, after, states="c"),
     here(before), ["a, c, c_prev, da, dc_prev, dh, h_prev", "'dc'"]),
    (lambda: declared(twice, back), here(twice), ["once", "'h' twice"]),
    (lambda: declared(forward("")(output.function), back), here(output), ["at least one", "none"]),
    *((lambda stage=stage: declared(stage, back), here(stage), ["self"])
      for stage in (defaults, any_number, any_name, one_by_one, by_name)),
    (lambda: declared(unknown, back), here(unknown, "tannh"), ["numbers", "NameError: name 'tannh' is not defined"]),
    (lambda: declared(shaped, back), here(shaped, "shape["), ["numbers", "AttributeError: 'float' object"]),
    (lambda: declared(one_result, back), here(one_result), ["2 numbers", "a, h", 1]),
    (lambda: declared(text, back), here(text), ["2 numbers", "a, h", "str"]),
])  # fmt: skip
def test_refused(declare, where, facts):
    with pytest.raises(CellError, match=says(f"cell Mine: {where}", *facts)):
        declare()


@pytest.mark.parametrize(("stages", "said", "facts"), [
    ((undeclared, back), {"slots": "s t"}, ["'kept'", 'slots="s t kept"']),
    ((output, both), {}, ["'dn'", 'slots="n"']),
    ((output, back), {"gates": [Gate("a", "m")], "slots": "m"}, ["'m'", "twice", "slots", "R", "multiplies='m'"]),
])  # fmt: skip
def test_the_cure_is_in_the_message(stages, said, facts):
    with pytest.raises(CellError, match=says("cell Mine:", *facts)):
        declared(*stages, **said)


@pytest.mark.parametrize(("stages", "got"), [
    ((output, gradient("a")(back.function)), "a"), ((output, gradient("n")(back.function)), "n"),
    ((forward("da h")(output.function), back), "da"), ((forward("c_prev h")(output.function), back), "c_prev"),
])  # fmt: skip
def test_no_cure_where_none_is_known(stages, got):
    with pytest.raises(CellError, match=f"got '{got}'$"):
        declared(*stages)


def test_a_decorator_without_its_names():
    with pytest.raises(CellError, match=says("cell Mine: gates", "none", '@cell(gates="names")')):

        @cell
        class Mine(NamedTuple):
            pass

    for decorator in (forward, gradient):
        with pytest.raises(CellError, match=says(here(output), f'@{decorator.__name__}("names")')):
            decorator(output.function)


def test_a_parameter_has_a_name_of_its_own():
    with pytest.raises(CellError, match=says("cell Mine: its parameter declaration", "@cell", "rename")):
        declared(output, back, fields=[("declaration", float)])
    with pytest.raises(CellError, match=says("cell Mine: its parameter output", "a stage", "rename")):

        @cell("a")
        class Mine(NamedTuple):
            output: float = output  # as a stage under the name of the parameter
            back = back


def test_names_may_be_a_list():
    kind = declared(state, gradient(["da", "dc_prev"])(after_one.function), gates=["a"], states=["c"])
    assert kind.declaration.gates == (Gate("a"),) and kind.declaration.states == ("c",)
    with pytest.raises(CellError, match=says("cell Mine: a gradient stage", "dp", "none")):
        declared(output, back, gates=["a"], vectors=["p"])


TEXT = ["text", "list"]  # which names may be


@pytest.mark.parametrize(("given", "argument", "facts"), [
    ({"gates": 5}, "gates", [*TEXT, "Gates", 5]),
    ({"gates": None}, "gates", [*TEXT, "Gates", None]),
    ({"gates": [1]}, "gates", [*TEXT, "Gates", 1]),
    ({"vectors": object}, "vectors", [*TEXT, "Vectors", "<class 'object'>"]),
    ({"vectors": [("p", 0, 1)]}, "vectors", [*TEXT, "Vectors", ("p", 0, 1)]),
    ({"states": 3}, "states", [*TEXT, 3]),
    ({"slots": [["s"]]}, "slots", [*TEXT, ["s"]]),
    ({"slots": b"s"}, "slots", [*TEXT, 115]),
    ({"smooth": "no"}, "smooth", ["bool", "'no'"]),
    ({"gates": [Gate("a", multiplies=["x"])]},
     "multiplies of Gate(name='a', multiplies=['x'], apart=None, input=True, heads=1)", ["name", "list"]),
    ({"gates": [Gate("a", apart=True)]},
     "apart of Gate(name='a', multiplies='h', apart=True, input=True, heads=1)", ["name", "None", "bool"]),
    ({"gates": [Gate("a", input=1)]},
     "input of Gate(name='a', multiplies='h', apart=None, input=1, heads=1)", ["bool", "int"]),
    ({"gates": [Gate("a", heads=0)]},
     "heads of Gate(name='a', multiplies='h', apart=None, input=True, heads=0)", ["int", 1, 0]),
    ({"gates": [Gate(None)]}, "name of Gate(name=None, multiplies='h', apart=None, input=True, heads=1)", ["NoneType"]),
    ({"vectors": [Vector(5)]}, "name of Vector(name=5, low=None, high=None)", ["int"]),
])  # fmt: skip
def test_arguments_of_other_types(given, argument, facts):
    with pytest.raises(CellError, match=says(f"cell Mine: {argument}", *facts)):
        declared(output, back, **given)


@pytest.mark.parametrize("decorator", [forward, gradient])
def test_stages_of_other_types(decorator):
    for writes, got in [(5, 5), (None, None), (object, "<class 'object'>"), (["a", ["h"]], ["h"])]:
        with pytest.raises(CellError, match=says(f"@{decorator.__name__}: writes", *TEXT, got)):
            decorator(writes)
    for function in (5, len, staticmethod(output.function)):
        with pytest.raises(CellError, match=says(f"@{decorator.__name__}: a stage", "function", repr(function))):
            decorator("a h")(function)


def test_what_is_no_class():
    for kind in (5, output.function):
        with pytest.raises(CellError, match=says("@cell: a cell", "class", repr(kind))):
            cell("a")(kind)
    expected = says("cell Mine: its parameter p", "bool", "int", "float", "Activation", "None")
    with pytest.raises(CellError, match=expected):
        cell("a")(namedtuple("Mine", "p"))


def test_a_class_has_the_parameters_of_its_base():
    class Base(NamedTuple):
        p: int

    kind = cell("a")(type("Mine", (Base,), {"output": output, "back": back}))
    assert parameter_types(kind) == {"p": int}


def test_what_is_right_is_taken():
    assert declared(output, back).declaration.slots == ("a",)
    kind = declared(output, back, fields=[("p", bool), ("q", int), ("r", float)])
    assert kind(True, 1, 0.5) == kind(True, 1, 0.5) != kind(False, 1, 0.5)
