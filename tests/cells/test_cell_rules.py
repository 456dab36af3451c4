"""A mistake in a cell is one error where the cell is declared, and says where: cell, stage, file and line."""

import os
from collections import namedtuple
from typing import NamedTuple

import pytest
from declared_cells import back, declared, output
from messages import raises, says

from rnnkit.cells import CellError, Gate, Vector, cell, forward, gradient
from rnnkit_kernels.cells.rules import parameter_types


def stage(name, decorator, function):
    """A stage on one line, which is that of the errors in it."""
    function.__name__ = name
    return decorator(function)


def here(stage, below=0):
    """Where a stage stands, or a line below its first one."""
    code = stage.function.__code__
    return f"stage {stage.function.__name__} ({os.path.basename(code.co_filename)}:{code.co_firstlineno + below})"


@forward("a h")
def unknown(self, a):
    b = a + 1
    return b, tannh(b)  # noqa: F821


shaped = stage("shaped", forward("a h"), lambda self, a: (a, a * a.shape[0]))
one_result = stage("one_result", forward("a h"), lambda self, a: a)
text = stage("text", forward("a h"), lambda self, a: (a, "a"))
undeclared = stage("undeclared", forward("a h kept"), lambda self, a: (a, a, a))
reads_unknown = stage("reads_unknown", forward("a h"), lambda self, a, b: (a, b))
twice = stage("twice", forward("h h"), lambda self, a: (a, a))
no_h = stage("no_h", forward("a"), lambda self, a: a)
defaults = stage("defaults", forward("a h"), lambda self, a=1: (a, a))
any_number = stage("any_number", forward("a h"), lambda self, a, *others: (a, a))
any_name = stage("any_name", forward("a h"), lambda self, a, **others: (a, a))
one_by_one = stage("one_by_one", forward("a h"), lambda self, a: (yield a))
by_name = stage("by_name", forward("a h"), lambda self, a, *, other: (a, a))
reads_h_prev = stage("reads_h_prev", forward("a h"), lambda self, a, h_prev: (a, a + h_prev))
second = stage("second", forward("n h"), lambda self, n: (n, n))
multiplied = stage("multiplied", forward("m"), lambda self, a: a)
circle = stage("circle", forward("h"), lambda self, a: a)
again = stage("again", forward("m h"), lambda self, n: (n, n))
both = stage("both", gradient("da dn"), lambda self, dh: (dh, dh))
state = stage("state", forward("c h"), lambda self, a, c_prev: (c_prev, a))
after = stage("after", gradient("da dc_prev dc"), lambda self, dh, dc: (dh, dc, dc))
after_one = stage("after_one", gradient("da dc_prev"), lambda self, dh, dc: (dh, dc))
before = stage("before", gradient("da"), lambda self, dc: dc)

A = Gate("a")
# Of a cell with the stages `output` and `back`, and what the error says.
ARGUMENTS = [
    (dict(base=object), "its class | NamedTuple | parameters"),
    (dict(fields=[("p", str)]), "its parameter p | bool | int | float | Activation"),
    (dict(fields=[("declaration", float)]), "its parameter declaration | @cell | rename"),
    (dict(gates=""), "gates | none"),
    (dict(gates="a a"), "the name 'a' | twice"),
    (dict(states="a"), "the name 'a' | gate | state"),
    (dict(gates=["a", Gate("n", "n")], states="n"), "the name 'n' | gate | state"),
    (dict(gates=["a", Gate("n", apart="q")], vectors="q"), "the name 'q' | product of R | vector"),
    (dict(scalars="p", inputs="p"), "the name 'p' | scalar | side input"),
    (dict(states="c c"), "the name 'c' | twice"),
    (dict(vectors="h"), "a name | identifier | h | self | 'h'"),
    (dict(vectors="weight_ih"), "the name 'weight_ih' | reserved | weight_hh | weight_hr | bias_ih | bias_hh"),
    (dict(slots="da"), "the name 'da' | reserved | gradient of a"),
    (dict(slots="c_prev"), "the name 'c_prev' | reserved | c before the step"),
    (dict(gates=[Gate("a", "m")], slots="m"), "the name 'm' | twice | slots | R | multiplies='m'"),
    (dict(gates=[A, Gate("b", "a")]), "gate b | h | 'a' | a is a gate"),
    (dict(gates=[Gate("a", "h_prev")]), "gate a | 'h_prev' | h"),
    (dict(gates=[Gate("a", "c_prev")], states="m"), "gate a | h | 'c_prev' | states=\"m c\""),
    (dict(gates=[A, Gate("b", "m"), Gate("d", "n")]), "a forward stage | m | R | b | none"),
    (dict(gates=[Gate("a", multiplies="m", apart="q")]), "a forward stage | m | R | q | none"),
    (dict(gates=[Gate("a", heads=2), Gate("b")]), "gate b | 2 heads | 1"),
    (dict(gates=[A, Gate("b", None, heads=2)]), "gate b | rows of R | multiplies=None | heads=2"),
    (dict(gates=[A, Gate("b", None, input=False)]), "gate b | W | R | multiplies=None | apart=None | input=False"),
    (dict(gates=[A, Gate("b", None, apart="q")]), "gate b | R | multiplies=None | apart='q'"),
    (dict(gates=[A, Gate("b", apart="q", input=False)]), "gate b | rows of W | R | apart='q' | input=False"),
    (dict(states="c"), "a forward stage | c | none"),
    (dict(slots="kept"), "a forward stage | kept | none"),
    (dict(vectors="p"), "a gradient stage | dp | none"),
    (dict(gates=["a"], vectors=["p"]), "a gradient stage | dp | none"),
    (dict(gates=5), "gates | text | list | Gates | 5"),
    (dict(gates=None), "gates | text | list | Gates | None"),
    (dict(gates=[1]), "gates | text | list | Gates | 1"),
    (dict(vectors=object), "vectors | text | list | Vectors | <class 'object'>"),
    (dict(vectors=[("p", 0, 1)]), "vectors | text | list | Vectors | ('p', 0, 1)"),
    (dict(states=3), "states | text | list | 3"),
    (dict(slots=[["s"]]), "slots | text | list | ['s']"),
    (dict(slots=b"s"), "slots | text | list | 115"),
    (dict(smooth="no"), "smooth | bool | 'no'"),
    *(
        (dict(gates=[gate]), f"{field} of {gate!r} | {facts}")
        for field, gate, facts in [
            ("multiplies", Gate("a", multiplies=["x"]), "name | list"),
            ("apart", Gate("a", apart=True), "name | None | bool"),
            ("input", Gate("a", input=1), "bool | int"),
            ("heads", Gate("a", heads=0), "int | 1 | 0"),
            ("name", Gate(None), "NoneType"),
        ]
    ),
    (dict(vectors=[Vector(5)]), "name of Vector(name=5, low=None, high=None) | int"),
]
CHAINED, CIRCLE = {"gates": [A, Gate("n", "m")]}, {"gates": [Gate("a", "m")]}
STAGES = [
    ((multiplied, output), CHAINED, "a forward stage | n | none"),
    ((multiplied, circle), CIRCLE, f"{here(multiplied)} | m | R | a | ends with m | second stage that reads a"),
    ((second, multiplied, back), CHAINED, f"a forward stage | m | R | n | {here(multiplied)}"),
    ((multiplied, again), CHAINED, f"{here(again)} | m | R | another"),
    ((undeclared,), {}, f"{here(undeclared)} | gates | states | h | later stage | 'kept'"),
    ((no_h, back), {}, "a forward stage | h | none"),
    ((state, back), {"states": "c"}, "a gradient stage | dc_prev | none"),
    ((reads_h_prev, back), {}, "a gradient stage | dh_prev | none"),
    ((second, both), CHAINED, "a forward stage | m | R | n | none"),
    ((multiplied, second, back), CHAINED, "a gradient stage | dn | none"),
    ((undeclared, back), {}, f"{here(undeclared)} | gate | slot | state | h | 'kept' | slots=\"kept\""),
    ((undeclared, back), {"slots": "s t"}, f"{here(undeclared)} | 'kept' | slots=\"s t kept\""),
    ((output, both), {}, f"{here(both)} | 'dn' | slots=\"n\""),
    ((reads_unknown, back), {}, f"{here(reads_unknown)} | a, h_prev | 'b'"),
    ((output, before), {"states": "c"}, "a forward stage | c | none"),
    ((output, before), {}, f"{here(before)} | a, dh, h_prev | 'dc'"),
    ((state, before, after), {"states": "c"}, f"{here(before)} | a, c, c_prev, da, dc_prev, dh, h_prev | 'dc'"),
    ((twice, back), {}, f"{here(twice)} | once | 'h' twice"),
    ((forward("")(output.function), back), {}, f"{here(output)} | at least one | none"),
    *(((one, back), {}, f"{here(one)} | self") for one in (defaults, any_number, any_name, one_by_one, by_name)),
    ((unknown, back), {}, f"{here(unknown, 3)} | numbers | NameError: name 'tannh' is not defined"),
    ((shaped, back), {}, f"{here(shaped)} | numbers | AttributeError: 'float' object"),
    ((one_result, back), {}, f"{here(one_result)} | 2 numbers | a, h | 1"),
    ((text, back), {}, f"{here(text)} | 2 numbers | a, h | str"),
]


@pytest.mark.parametrize(("stages", "options", "message"), [*(((output, back), *row) for row in ARGUMENTS), *STAGES])
def test_wrong_declaration_is_refused(stages, options, message):
    with raises(CellError, f"cell Mine: {message}"):
        declared(*stages, **options)


@pytest.mark.parametrize("got", ["a", "n", "da", "c_prev"])
def test_message_has_no_cure_where_none_is_known(got):
    is_gradient = len(got) == 1
    stages = (output, gradient(got)(back.function)) if is_gradient else (forward(f"{got} h")(output.function), back)
    with pytest.raises(CellError, match=f"got '{got}'$"):
        declared(*stages)


def test_decorator_without_names_is_refused():
    with pytest.raises(CellError, match=says("cell Mine: gates", "none", '@cell(gates="names")')):

        @cell
        class Mine(NamedTuple):
            pass

    for decorator in (forward, gradient):
        with pytest.raises(CellError, match=says(here(output), f'@{decorator.__name__}("names")')):
            decorator(output.function)


def test_stage_under_the_name_of_a_parameter_is_refused():
    with pytest.raises(CellError, match=says("cell Mine: its parameter output", "a stage", "rename")):

        @cell("a")
        class Mine(NamedTuple):
            output: float = output  # as a stage under the name of the parameter
            back = back


def test_names_may_be_a_list():
    kind = declared(state, gradient(["da", "dc_prev"])(after_one.function), gates=["a"], states=["c"])
    assert kind.declaration.gates == (A,) and kind.declaration.states == ("c",)


@pytest.mark.parametrize("decorator", [forward, gradient])
def test_stages_of_other_types_are_refused(decorator):
    for writes, got in [(5, 5), (None, None), (object, "<class 'object'>"), (["a", ["h"]], ["h"])]:
        with pytest.raises(CellError, match=says(f"@{decorator.__name__}: writes", "text", "list", got)):
            decorator(writes)
    for function in (5, len, staticmethod(output.function)):
        with pytest.raises(CellError, match=says(f"@{decorator.__name__}: a stage", "function", repr(function))):
            decorator("a h")(function)


def test_cell_that_is_no_typed_class_is_refused():
    for kind in (5, output.function):
        with pytest.raises(CellError, match=says("@cell: a cell", "class", repr(kind))):
            cell("a")(kind)
    expected = says("cell Mine: its parameter p", "bool", "int", "float", "Activation", "None")
    with pytest.raises(CellError, match=expected):
        cell("a")(namedtuple("Mine", "p"))


def test_class_has_the_parameters_of_its_base():
    class Base(NamedTuple):
        p: int

    kind = cell("a")(type("Mine", (Base,), {"output": output, "back": back}))
    assert parameter_types(kind) == {"p": int}


def test_declared_cell_compares_by_its_parameters():
    assert declared(output, back).declaration.slots == ("a",)
    kind = declared(output, back, fields=[("p", bool), ("q", int), ("r", float)])
    assert kind(True, 1, 0.5) == kind(True, 1, 0.5) != kind(False, 1, 0.5)
