"""check_cell finds planted errors, and names what is wrong; what is right it prints as a table."""

import math
from typing import NamedTuple

import own_cells
import pytest
from messages import says

import rnnkit
from rnnkit.cell_check import CheckRow
from rnnkit.cells import CellError, cell, clip, forward, gradient
from rnnkit_kernels.cells.gru import ResetAfterGRU, ResetBeforeGRU
from rnnkit_kernels.cells.lstm import LSTM
from rnnkit_kernels.cells.vanilla import ReLU, Tanh

RIGHT = [
    Tanh, ReLU, LSTM(False, -1.0, 1.0), LSTM(True, -0.4, 0.6), ResetAfterGRU, ResetBeforeGRU, own_cells.OwnLSTM,
    own_cells.Peephole, own_cells.Stabilised, own_cells.Independent, own_cells.Feedforward,
]  # fmt: skip


@pytest.mark.parametrize("kind", RIGHT, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_right(kind, seed):
    table = rnnkit.check_cell(kind, seed)
    assert all(row.right for row in table) and min(row.trials for row in table) > 25


def test_the_table():
    table = rnnkit.check_cell(own_cells.Peephole)
    assert [(row.name, row.kind) for row in table] == [
        ("i", "gate"), ("f", "gate"), ("g", "gate"), ("o", "gate"), ("c_prev", "state"), ("peephole_i", "vector"),
        ("peephole_f", "vector"), ("peephole_o", "vector"),
    ]  # fmt: skip
    lines = repr(table).splitlines()
    assert lines[0].split() == ["wrt", "kind", "trials", "gradient", "derived", "finite", "diff."]
    assert lines[1].split()[:3] == ["i", "gate", "32"] and len(lines) == 9


@pytest.mark.parametrize(("trials", "error", "right"), [
    (1, 1.0, True), (1, math.nextafter(1, 2), False), (1, math.nan, False), (0, 0.0, False),
])  # fmt: skip
def test_a_row_is_right_up_to_the_error_that_is_allowed(trials, error, right):
    assert CheckRow("a", "gate", trials, 0.5, 0.5, error).right is right


PLANTED = [
    (number, factor)
    for number in range(len(own_cells.Peephole.declaration.phases[0].gradient[1].writes))
    for factor in (1.001, -1.0, 0.0, float("nan"))
]


@pytest.mark.parametrize(("number", "factor"), PLANTED)
def test_a_planted_error_is_named(monkeypatch, number, factor):
    said = own_cells.Peephole.declaration
    [phase] = said.phases
    output, through = phase.gradient

    def wrong(self, *numbers):
        found = list(through.function(self, *numbers))
        found[number] *= factor
        return tuple(found)

    monkeypatch.setattr(said, "phases", (phase._replace(gradient=(output, through._replace(function=wrong))),))
    name = through.writes[number]
    with pytest.raises(CellError, match=says("check_cell:", "Peephole()", name)) as error:
        rnnkit.check_cell(own_cells.Peephole)
    _, _, *rows = str(error.value).splitlines()
    assert [row.split()[0] for row in rows if row.endswith("wrong")] == [name.removeprefix("d")]


@cell(gates="a")
class Bounded(NamedTuple):
    """Its gradient is wrong beyond the bound alone."""

    @forward("h")
    def output(self, a):
        return clip(a, -1.5, 1.5)

    @gradient("da")
    def back(self, dh):
        return dh


@cell(gates="a")
class Sometimes(NamedTuple):
    """Its gradient is a NaN for a few numbers."""

    @forward("h")
    def output(self, a):
        return a + a

    @gradient("da")
    def back(self, a, dh):
        return (dh + dh) * (1 if a > -1.5 else math.nan)


@pytest.mark.parametrize("kind", [Bounded, Sometimes])
def test_an_error_in_a_part_of_the_numbers_is_named(kind):
    with pytest.raises(CellError, match=says("check_cell:", f"{kind.__name__}()", "da")):
        rnnkit.check_cell(kind)


@pytest.mark.parametrize(("given", "got"), [("lstm", "str"), (3, "int"), (rnnkit.GRU, "type")])
def test_what_is_not_a_cell(given, got):
    with pytest.raises(TypeError, match=says("check_cell: cell", "a cell", got)):
        rnnkit.check_cell(given)


def test_a_parameter_that_is_none():
    with pytest.raises(TypeError, match=says("check_cell: cell, Independent's scale", "float", "str")):
        rnnkit.check_cell(own_cells.Independent(scale="2"))


@cell(gates="a")
class Logarithm(NamedTuple):
    """Its value is there for some numbers alone."""

    @forward("a h")
    def output(self, a):
        return a, math.log(a + 1.5)

    @gradient("da")
    def back(self, a, dh):
        return dh / (a + 1.5)


@cell(gates="a")
class Overflowing(NamedTuple):
    """Its gradient is too large for some numbers."""

    @forward("a h")
    def output(self, a):
        return a, a

    @gradient("da")
    def back(self, a, dh):
        return dh * math.exp(1000 * a)


@cell(gates="a")
class Root(NamedTuple):
    """Python's root of a number below 0 is a complex one."""

    @forward("a h")
    def output(self, a):
        return a, (a + 1.5) ** 0.5

    @gradient("da")
    def back(self, a, dh):
        return dh * 0.5 * (a + 1.5) ** -0.5


@pytest.mark.parametrize(("kind", "text"), [
    (Logarithm, r"stage output \(test_check_cell.py:\d+\) .*\ba=-\d\.\d+.* ValueError: "),
    (Overflowing, r"stage back \(test_check_cell.py:\d+\) .*\ba=\d\.\d+, dh=-?\d\.\d+.* OverflowError: "),
    (Root, r"stage output \(test_check_cell.py:\d+\) .*\b2 numbers \(a, h\).* complex\b.* h\b"),
])  # fmt: skip
def test_numbers_that_a_stage_does_not_compute_with_are_named(kind, text):
    with pytest.raises(CellError, match=f"^cell {kind.__name__}: {text}"):
        rnnkit.check_cell(kind)


@pytest.mark.parametrize(("seed", "error"), [("a", TypeError), (-1, ValueError), (1.5, TypeError)])
def test_what_is_no_seed(seed, error):
    got = seed if error is ValueError else type(seed).__name__
    with pytest.raises(error, match=says("check_cell: seed", got)):
        rnnkit.check_cell(Bounded, seed)


def test_a_derived_gradient_stands_beside_one_by_hand():
    table = rnnkit.check_cell(ResetBeforeGRU)
    assert all(row.derived == pytest.approx(row.gradient, rel=1e-12) for row in table)

    @cell(gates="a")
    class Derived(NamedTuple):
        activate = forward("h")(lambda self, a: math.tanh(a))

    assert all(row.derived is None for row in rnnkit.check_cell(Derived))
