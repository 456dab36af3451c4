"""check_cell finds planted errors, and names what is wrong; what is right it prints as a table."""

import math
from typing import NamedTuple

import own_cells
import pytest
from messages import says
from other_cells import KINDS, OWN
from refused import refusals

import rnnkit
from examples.gallery.page import CELLS as GALLERY
from rnnkit.cell_check import CheckRow
from rnnkit.cells import CellError, cell, clip, forward, gradient
from rnnkit_kernels.cells.gru import ResetAfterGRU, ResetBeforeGRU
from rnnkit_kernels.cells.lstm import LSTM
from rnnkit_kernels.cells.vanilla import ReLU, Tanh

RIGHT = GALLERY | KINDS | OWN | {str(kind): kind for kind in (
    Tanh, ReLU, LSTM(False, -1.0, 1.0), LSTM(True, -0.4, 0.6), ResetAfterGRU, ResetBeforeGRU, own_cells.OwnLSTM,
    own_cells.Peephole, own_cells.Stabilised, own_cells.ReadTwice,
)}  # fmt: skip


@pytest.mark.parametrize("kind", RIGHT.values(), ids=RIGHT)
def test_right_gradients_pass(kind):
    table = rnnkit.check_cell(kind, seed=1)
    assert all(row.right for row in table) and min(row.trials for row in table) > 25


def test_table_has_a_row_for_each_variable():
    table = rnnkit.check_cell(own_cells.Peephole)
    assert " ".join(row.name for row in table) == "i f g o c_prev peephole_i peephole_f peephole_o"
    assert [row.kind for row in table] == ["gate"] * 4 + ["state"] + ["vector"] * 3
    lines = repr(table).splitlines()
    assert lines[0].split() == ["wrt", "kind", "trials", "gradient", "derived", "finite", "diff."]
    assert lines[1].split()[:3] == ["i", "gate", "32"] and len(lines) == 9


@pytest.mark.parametrize(
    ("trials", "error", "right"),
    [(1, 1.0, True), (1, math.nextafter(1, 2), False), (1, math.nan, False), (0, 0.0, False)],
)
def test_row_is_right_up_to_the_error_that_is_allowed(trials, error, right):
    assert CheckRow("a", "gate", trials, 0.5, 0.5, error).right is right


PLANTED = [
    (number, factor)
    for number in range(len(own_cells.Peephole.declaration.phases[0].gradient[1].writes))
    for factor in (1.001, -1.0, 0.0, float("nan"))
]


@pytest.mark.parametrize(("number", "factor"), PLANTED)
def test_planted_error_is_named(monkeypatch, number, factor):
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


def one(name, writes, output, back):
    """A cell of one gate, with its stage and its gradient."""
    output.__name__, back.__name__ = "output", "back"
    stages = {"output": forward(writes)(output), "back": gradient("da")(back)}
    return cell(gates="a")(type(name, (NamedTuple(name, []),), stages))


# Gradients that are wrong for a part of the numbers.
Bounded = one("Bounded", "h", lambda self, a: clip(a, -1.5, 1.5), lambda self, dh: dh)
Sometimes = one("Sometimes", "h", lambda self, a: a + a, lambda self, a, dh: (dh + dh) * (1 if a > -1.5 else math.nan))
# Stages that raise, or are complex, for a part of them.
Logarithm = one("Logarithm", "a h", lambda self, a: (a, math.log(a + 1.5)), lambda self, a, dh: dh / (a + 1.5))
Overflowing = one("Overflowing", "a h", lambda self, a: (a, a), lambda self, a, dh: dh * math.exp(1000 * a))
Root = one("Root", "a h", lambda self, a: (a, (a + 1.5) ** 0.5), lambda self, a, dh: dh * 0.5 * (a + 1.5) ** -0.5)


@pytest.mark.parametrize("kind", [Bounded, Sometimes])
def test_error_in_a_part_of_the_numbers_is_named(kind):
    with pytest.raises(CellError, match=says("check_cell:", f"{kind.__name__}()", "da")):
        rnnkit.check_cell(kind)


@refusals(check_cell=[
    (lambda: rnnkit.check_cell("lstm"), "TypeError cell | a cell | str"),
    (lambda: rnnkit.check_cell(3), "TypeError cell | a cell | int"),
    (lambda: rnnkit.check_cell(rnnkit.GRU), "TypeError cell | a cell | type"),
    (lambda: rnnkit.check_cell(own_cells.Independent(scale="2")), "TypeError cell, Independent's scale | float | str"),
    (lambda: rnnkit.check_cell(Bounded, "a"), "TypeError seed | str"),
    (lambda: rnnkit.check_cell(Bounded, -1), "seed | -1"),
    (lambda: rnnkit.check_cell(Bounded, 1.5), "TypeError seed | float"),
])  # fmt: skip
def test_wrong_argument_is_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


@pytest.mark.parametrize(("kind", "text"), [
    (Logarithm, r"stage output \(test_check_cell.py:\d+\) .*\ba=-\d\.\d+.* ValueError: "),
    (Overflowing, r"stage back \(test_check_cell.py:\d+\) .*\ba=\d\.\d+, dh=-?\d\.\d+.* OverflowError: "),
    (Root, r"stage output \(test_check_cell.py:\d+\) .*\b2 numbers \(a, h\).* complex\b.* h\b"),
])  # fmt: skip
def test_numbers_that_a_stage_fails_on_are_named(kind, text):
    with pytest.raises(CellError, match=f"^cell {kind.__name__}: {text}"):
        rnnkit.check_cell(kind)


def test_derived_gradient_stands_beside_one_by_hand():
    table = rnnkit.check_cell(ResetBeforeGRU)
    assert all(row.derived == pytest.approx(row.gradient, rel=1e-12) for row in table)

    @cell(gates="a")
    class Derived(NamedTuple):
        activate = forward("h")(lambda self, a: math.tanh(a))

    assert all(row.derived is None for row in rnnkit.check_cell(Derived))
