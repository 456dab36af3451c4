"""`rnnkit check`: the checker of cells on the command line, with its exit status."""

import sys
from functools import partial

import pytest
from command_line import main
from messages import one_line_says

import rnnkit
from rnnkit.cells import JANET

SOURCE = """
from typing import NamedTuple

from neighbour import HALF
from rnnkit.cells import cell, forward, gradient, tanh


@cell(gates="f")
class Right(NamedTuple):
    factor: float = HALF

    @forward("h")
    def step(self, f, h_prev):
        return tanh(f) + self.factor * h_prev


@cell(gates="f")
class Wrong(NamedTuple):
    @forward("f h")
    def step(self, f):
        f = tanh(f)
        return f, f

    @gradient("df")
    def through_step(self, f, dh):
        return dh * (1 - f)


@cell(gates="f")
class Needs(NamedTuple):
    factor: float

    @forward("h")
    def step(self, f):
        return self.factor * f


doubled, nothing = Needs(2.0), 7
"""


@pytest.fixture
def check(tmp_path, capsys, monkeypatch):
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "neighbour.py").write_text("HALF = 0.5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mine", "neighbour", "rnnkit_check"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    return partial(main, capsys, "check")


@pytest.mark.parametrize("place", ["mine.py", "mine"])
def test_right_cell_is_shown_as_a_table(check, place):
    status, out, err = check(f"{place}:Right")
    assert (status, err) == (0, "")
    title, table = out.split("\n", 1)
    assert f"{place}:Right" in title and [line.split()[0] for line in table.splitlines()] == ["wrt", "f", "h_prev"]


def test_table_is_that_of_check_cell_with_the_seed(check):
    for options, seed in (([], 0), (["--seed", "3"], 3)):
        _, out, _ = check("rnnkit.cells:JANET", *options)
        assert out.split("\n", 1)[1] == f"{rnnkit.check_cell(JANET, seed)!r}\n"


def test_cell_with_its_parameters_is_checked(check):
    assert check("mine.py:doubled")[0] == 0


def test_wrong_cell_has_status_1_and_the_message(check):
    status, out, err = check("mine.py:Wrong")
    assert (status, out) == (1, "")
    assert err.startswith("rnnkit: check_cell: Wrong() has wrong gradients df\nwrt ") and "  wrong\n" in err


def test_cell_that_cannot_be_defined_has_status_1(check, tmp_path):
    (tmp_path / "bad.py").write_text(SOURCE.replace("self.factor * f", "self.factors * f"))
    status, out, err = check("bad.py:Right")
    assert (status, out) == (1, "") and one_line_says(err, "rnnkit: cell Needs", "factors")


@pytest.mark.parametrize(
    ("place", "where", "facts"),
    [
        ("mine", "check: CELL", ["FILE.py:CLASS", "MODULE:CLASS", "mine"]),
        (":Right", "check: CELL", ["FILE.py:CLASS", ":Right"]),
        ("mine.py:", "check: CELL", ["FILE.py:CLASS", "mine.py:"]),
        ("mine.py:Left", "check: CELL", ["mine.py", "Left", "Right, Wrong, Needs, doubled"]),
        ("neighbour:Left", "check: CELL", ["neighbour", "Left", "no cell"]),
        ("none.py:Right", "none.py:", ["No such file"]),
        ("none:Right", "check: CELL", ["none", "ModuleNotFoundError", "No module named 'none'"]),
        ("mine.py:nothing", "check_cell: cell", ["int"]),
        ("mine.py:Needs", "check_cell: cell", ["Needs"]),
        ("syntax.py:Right", "check: CELL", ["SyntaxError", "line 2"]),
        ("raises.py:Right", "check: CELL", ["ZeroDivisionError", "raises.py, line 3"]),
    ],
)
def test_other_errors_are_one_line_with_status_2(check, tmp_path, place, where, facts):
    (tmp_path / "syntax.py").write_text("\nx = = 1\n")
    (tmp_path / "raises.py").write_text("\n\n1 / 0\n")
    status, out, err = check(place)
    assert (status, out) == (2, "") and one_line_says(err, f"rnnkit: {where}", *facts), err
