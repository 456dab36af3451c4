"""A module with a cell, whose stage computes with all that a stage may use, and edits of each of these things."""

import linecache
import sys
import types
from itertools import count

import pytest

MODULE = """
from math import sin as wave
from typing import NamedTuple

import consts
from rnnkit.cells import cell, forward, gradient, sigmoid, tanh

act = tanh
most = max
RATE = 0.5
START = 0.125
POINT = 1.0, 2.0


def bent(x, by=START, and_by=0.0625):
    return most(x, 0.3) * by + and_by


def around(factor):
    def scaled(x):
        return factor * x + consts.SCALE

    return scaled


one, two = around(1.5), around(1.75)
made = one


@cell(gates="a")
class Mine(NamedTuple):
    shift: float = 0.5

    @forward("a h")
    def output(self, a):
        h = act(a) + wave(a) + RATE * a + POINT[1]
        return a, h + bent(a) + made(a) - 0.01

    @gradient("da")
    def back(self, dh):
        return dh
"""
EDITS = [
    ("act = tanh", "act = sigmoid"),
    ("import sin as wave", "import cos as wave"),
    ("most = max", "most = min"),
    ("RATE = 0.5", "RATE = 0.53125"),
    ("START = 0.125", "START = 0.1875"),
    ("and_by=0.0625", "and_by=0.03125"),
    ("1.0, 2.0", "1.0, 2.015625"),
    ("SCALE = 4.0", "SCALE = 4.00390625"),
    ("+ consts.SCALE", "- consts.SCALE"),
    ("made = one", "made = two"),
    ("- 0.01", "- 0.009"),
    ("+ bent(a)", "- bent(a)"),
]
CONSTS = "SCALE = 4.0\n"
NUMBERS = count()


def edited(edits, text):
    for before, after in edits:
        text = text.replace(before, after)
    return text


def defined(edits, text=MODULE):
    """The cell of the module with these edits, as Python would import it."""
    consts, name, text = types.ModuleType("consts"), f"<module {next(NUMBERS)}>", edited(edits, text)
    exec(edited(edits, CONSTS), vars(consts))
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "consts", consts)
        exec(compile(text, name, "exec"), names := {"__name__": "module"})
    return names["Mine"]


def result(kind, number=0.40625):
    """What its first stage makes of a number."""
    return kind.declaration.stages[0].function(kind(), number)
