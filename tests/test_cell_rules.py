"""A mistake in a cell is one error where the cell is declared, and says where: cell, stage, file and line."""

import inspect
import re
from collections import namedtuple
from typing import NamedTuple

import pytest

from rnnkit.cells import CellError, Gate, Vector, cell, forward, gradient
from rnnkit.kernels.cells.rules import parameter_types


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


@pytest.mark.parametrize(("declare", "message"), [
    (lambda: declared(output, back, base=object), "its class must be a NamedTuple, whose fields are its parameters"),
    (lambda: declared(output, back, fields=[("p", str)]),
     "its parameter p must be annotated bool, int, float or Activation, got"),
    (lambda: declared(output, back, gates=""), "gates must be at least one, got none"),
    (lambda: declared(output, back, gates="a a"), "a name must stand for one thing, got 'a' twice"),
    (lambda: declared(output, back, states="a"),
     "a name must stand for one thing, got 'a' for a gate and a state; rename one of them"),
    (lambda: declared(output, back, gates=["a", Gate("n", "n")], states="n"),
     "a name must stand for one thing, got 'n' for a gate and a state; rename one of them"),
    (lambda: declared(output, back, gates=["a", Gate("n", apart="q")], vectors="q"),
     "a name must stand for one thing, got 'q' for a product of R and a vector; rename one of them"),
    (lambda: declared(output, back, scalars="p", inputs="p"),
     "a name must stand for one thing, got 'p' for a scalar and a side input; rename one of them"),
    (lambda: declared(output, back, states="c c"), "a name must stand for one thing, got 'c' twice"),
    (lambda: declared(output, back, vectors="h"), "a name must be an identifier other than h and self, got 'h'"),
    (lambda: declared(output, back, vectors="weight_ih"),
     "a name must be another one than those of every network's weights, weight_ih, weight_hh, weight_hr, bias_ih, "
     "bias_hh, got 'weight_ih'"),
    (lambda: declared(output, back, slots="da"),
     "a name must not be one that a stage knows a state before the step or a gradient by, got 'da'"),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", "a")]),
     "gate b must multiply h, a state before or after the step, or what a stage writes, got 'a'; a is a gate: let a "
     "stage write its value under another name"),
    (lambda: declared(output, back, gates=[Gate("a", "h_prev")]),
     "gate a must multiply h, a state before or after the step, or what a stage writes, got 'h_prev'; write h"),
    (lambda: declared(output, back, gates=[Gate("a", "c_prev")], states="m"),
     "gate a must multiply h, a state before or after the step, or what a stage writes, got 'c_prev'; declare "
     'states="m c"'),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", "m"), Gate("d", "n")]),
     "a forward stage must write m, which R multiplies, before one reads b, got none"),
    (lambda: declared(output, back, gates=[Gate("a", multiplies="m", apart="q")]),
     "a forward stage must write m, which R multiplies, before one reads q, got none"),
    (lambda: declared(output, back, gates=[Gate("a", heads=2), Gate("b")]),
     "gate b must have 2 heads as the others, got 1"),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", multiplies=None, heads=2)]),
     "gate b must have rows of R, whose heads they are, got multiplies=None, heads=2"),
    (lambda: declared(output, back, gates=[Gate("a", input=False)]),
     "gates must be at least one with rows of W, got input=False for all"),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", multiplies=None, input=False)]),
     "gate b must have rows of W or of R, and a product of R where that is kept apart, got multiplies=None, "
     "apart=None, input=False"),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", multiplies=None, apart="q")]),
     "gate b must have rows of W or of R, and a product of R where that is kept apart, got multiplies=None, apart='q'"),
    (lambda: declared(output, back, gates=[Gate("a"), Gate("b", apart="q", input=False)]),
     "gate b must have rows of W where R's product is kept apart, got apart='q', input=False; the gate itself is R's"),
    (lambda: declared(multiplied, output, gates=[Gate("a"), Gate("n", "m")]), "a forward stage must read n, got none"),
    (lambda: declared(multiplied, circle, gates=[Gate("a", "m")]),
     here(multiplied) + " must write m, which R multiplies, in a stage before the one that reads a, got one stage for "
     "both; end it with m, and begin a second stage, which reads a"),
    (lambda: declared(second, multiplied, back, gates=[Gate("a"), Gate("n", "m")]),
     f"a forward stage must write m, which R multiplies, before one reads n, got {here(multiplied)} behind it; put it "
     "in front"),
    (lambda: declared(multiplied, again, gates=[Gate("a"), Gate("n", "m")]),
     here(again) + " must leave m, which R multiplies, as a stage before has written it, got another one"),
    (lambda: declared(undeclared), here(undeclared) + " must write gates, states, h, or what a later stage reads, got "
     "'kept'"),
    (lambda: declared(no_h, back), "a forward stage must write h, got none that does"),
    (lambda: declared(output, back, states="c"), "a forward stage must write c, got none that does"),
    (lambda: declared(output, back, slots="kept"), "a forward stage must write kept, got none that does"),
    (lambda: declared(output, back, vectors="p"), "a gradient stage must write dp, got none that does"),
    (lambda: declared(state, back, states="c"), "a gradient stage must write dc_prev, got none that does"),
    (lambda: declared(reads_h_prev, back), "a gradient stage must write dh_prev, got none that does"),
    (lambda: declared(second, both, gates=[Gate("a"), Gate("n", "m")]),
     "a forward stage must write m, which R multiplies, before one reads n, got none"),
    (lambda: declared(multiplied, second, back, gates=[Gate("a"), Gate("n", "m")]),
     "a gradient stage must write dn, got none that does"),
    (lambda: declared(undeclared, back), here(undeclared) + " must write a gate, slot, state or h, got 'kept'"),
    (lambda: declared(reads_unknown, back),
     here(reads_unknown) + " must read names that are there before it: a, h_prev, got 'b'"),
    (lambda: declared(output, before, states="c"), "a forward stage must write c"),
    (lambda: declared(output, before),
     here(before) + " must read names that are there before it: a, dh, h_prev, got 'dc'"),
    (lambda: declared(state, before, after, states="c"), here(before) + " must read names that are there before it"),
    (lambda: declared(twice, back), here(twice) + " must write each name once, and one or more, got 'h'"),
    *((lambda stage=stage: declared(stage, back), here(stage) + " must take self and the names that it reads, one or")
      for stage in (defaults, any_number, any_name, one_by_one, by_name)),
    (lambda: declared(unknown, back),
     here(unknown, "tannh") + " must compute with numbers, got NameError: name 'tannh' is not defined"),
    (lambda: declared(shaped, back),
     here(shaped, "shape[") + " must compute with numbers, got AttributeError: 'float' object has no attribute"),
    (lambda: declared(one_result, back), here(one_result) + " must return 2 numbers, a, h, got 1"),
    (lambda: declared(text, back), here(text) + " must return 2 numbers, a, h, got str for h"),
])  # fmt: skip
def test_refused(declare, message):
    with pytest.raises(CellError, match="^cell Mine: " + re.escape(message)):
        declare()


@pytest.mark.parametrize(("stages", "said", "end"), [
    ((undeclared, back), {}, "got 'kept'; declare slots=\"kept\""),
    ((undeclared, back), {"slots": "s t"}, "got 'kept'; declare slots=\"s t kept\""),
    ((output, both), {}, "got 'dn'; declare slots=\"n\""),
    ((output, gradient("a")(back.function)), {}, "got 'a'"),
    ((output, gradient("n")(back.function)), {}, "got 'n'"),
    ((forward("da h")(output.function), back), {}, "got 'da'"),
    ((forward("c_prev h")(output.function), back), {}, "got 'c_prev'"),
    ((output, back), {"states": "a"}, "got 'a' for a gate and a state; rename one of them"),
    ((output, back), {"gates": [Gate("a", "m")], "slots": "m"},
     "got 'm' twice; what R multiplies is a slot: declare it by multiplies alone"),
])  # fmt: skip
def test_the_cure_is_in_the_message(stages, said, end):
    with pytest.raises(CellError) as error:
        declared(*stages, **said)
    assert str(error.value).endswith(end)


def test_a_decorator_without_its_names():
    with pytest.raises(CellError) as error:

        @cell
        class Mine(NamedTuple):
            pass

    assert str(error.value) == 'cell Mine: gates must be at least one, got none; write @cell(gates="names")'
    for decorator in (forward, gradient):
        with pytest.raises(CellError) as error:
            decorator(output.function)
        cure = f'must be told what it writes, got nothing; write @{decorator.__name__}("names")'
        assert str(error.value) == f"{here(output)} {cure}"


def test_names_may_be_a_list():
    kind = declared(state, gradient(["da", "dc_prev"])(after_one.function), gates=["a"], states=["c"])
    assert kind.declaration.gates == (Gate("a"),) and kind.declaration.states == ("c",)
    with pytest.raises(CellError, match="a gradient stage must write dp, got none that does"):
        declared(output, back, gates=["a"], vectors=["p"])


TEXT, TWO = "must be names in a text, or a list of names, got", "must be names in a text, or a list of names or"


@pytest.mark.parametrize(("given", "message"), [
    ({"gates": 5}, f"gates {TWO} Gates, got 5"),
    ({"gates": None}, f"gates {TWO} Gates, got None"),
    ({"gates": [1]}, f"gates {TWO} Gates, got 1"),
    ({"vectors": object}, f"vectors {TWO} Vectors, got <class 'object'>"),
    ({"vectors": [("p", 0, 1)]}, f"vectors {TWO} Vectors, got ('p', 0, 1)"),
    ({"states": 3}, f"states {TEXT} 3"),
    ({"slots": [["s"]]}, f"slots {TEXT} ['s']"),
    ({"slots": b"s"}, f"slots {TEXT} 115"),
    ({"smooth": "no"}, "smooth must be a bool, got 'no'"),
    ({"gates": [Gate("a", multiplies=["x"])]},
     "multiplies of Gate(name='a', multiplies=['x'], apart=None, input=True, heads=1) must be a name or None, got "
     "list"),
    ({"gates": [Gate("a", apart=True)]},
     "apart of Gate(name='a', multiplies='h', apart=True, input=True, heads=1) must be a name or None, got bool"),
    ({"gates": [Gate("a", input=1)]},
     "input of Gate(name='a', multiplies='h', apart=None, input=1, heads=1) must be a bool, got int"),
    ({"gates": [Gate("a", heads=0)]},
     "heads of Gate(name='a', multiplies='h', apart=None, input=True, heads=0) must be an int of at least 1, got 0"),
    ({"gates": [Gate(None)]},
     "name of Gate(name=None, multiplies='h', apart=None, input=True, heads=1) must be a name, got NoneType"),
    ({"vectors": [Vector(5)]}, "name of Vector(name=5, low=None, high=None) must be a name, got int"),
])  # fmt: skip
def test_arguments_of_other_types(given, message):
    with pytest.raises(CellError, match="^cell Mine: " + re.escape(message)):
        declared(output, back, **given)


@pytest.mark.parametrize("decorator", [forward, gradient])
def test_stages_of_other_types(decorator):
    for writes, got in [(5, "5"), (None, "None"), (object, "<class 'object'>"), (["a", ["h"]], "['h']")]:
        with pytest.raises(CellError, match=f"^@{decorator.__name__}: writes {re.escape(f'{TEXT} {got}')}$"):
            decorator(writes)
    for function in (5, len, staticmethod(output.function)):
        with pytest.raises(CellError, match=f"^@{decorator.__name__}: a stage must be a function, got "):
            decorator("a h")(function)


def test_what_is_no_class():
    for kind in (5, output.function):
        with pytest.raises(CellError, match="^@cell: a cell must be a class, got "):
            cell("a")(kind)
    with pytest.raises(CellError, match="its parameter p must be annotated bool, int, float or Activation, got None"):
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
