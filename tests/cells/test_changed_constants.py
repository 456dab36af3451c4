"""A constant that is reassigned after the class was defined, as in a notebook: the digests of files and of the kernel
cache stay those of what runs, and nothing is compiled with the new value."""

import sys
from typing import NamedTuple

import numpy as np
import pytest
from messages import says

import rnnkit
from rnnkit.cells import Activation, CellError, cell, derivative, forward, gradient, tanh, value
from rnnkit_kernels.cells.source import code_key, source_of

SCALE = BY_HAND = SHIFT = STEEP = 1.0
HERE = sys.modules[__name__]
X = np.ones((1, 1, 2))


@cell(gates="a")
class Derived(NamedTuple):
    step = forward("h")(lambda self, a: tanh(SCALE * a))


def defined_again():
    Again = type("Derived", (NamedTuple("Derived", []),), {"step": Derived.declaration.equations[0]})
    return cell(gates="a")(Again)


def shifted(a):
    return a * BY_HAND


@cell(gates="a")
class ByHand(NamedTuple):
    step = forward("h")(lambda self, a: shifted(a))
    back = gradient("da")(lambda self, dh: dh * BY_HAND)


@Activation.register
class Shifted(NamedTuple):
    def value(self, x):
        return x + SHIFT

    def slope(self, y):
        return 1


@cell(gates="a")
class Activated(NamedTuple):
    act: Activation = Shifted()
    step = forward("h")(lambda self, a: value(self.act, a))


def steep(x):
    return STEEP * x


@derivative(steep)
def of_steep(x):
    return STEEP


@cell(gates="a")
class Primitive(NamedTuple):
    step = forward("h")(lambda self, a: steep(a))


def digests(kind):
    return code_key(kind), source_of(kind)


def test_derived_cell_keeps_the_value_and_the_digests(monkeypatch, tmp_path):
    before, (loop, _) = digests(Derived), Derived.declaration.stages
    net = rnnkit.Network(Derived, 2, 3, seed=0)
    monkeypatch.setattr(HERE, "SCALE", 3.0)
    assert digests(Derived) == before
    assert loop.function(Derived(), 0.5) == pytest.approx((np.tanh(0.5),) * 2)
    net.save(tmp_path / "net")
    assert rnnkit.load(tmp_path / "net", cell=Derived) == net

    with pytest.raises(ValueError, match=says("", "Derived with other equations", before[1][:8])):
        rnnkit.load(tmp_path / "net", cell=defined_again())


def test_check_cell_names_a_changed_constant(monkeypatch):
    monkeypatch.setattr(HERE, "SCALE", 3.0)
    facts = "h=", "a=", "called as Python functions", "constant", "changed", "again"
    with pytest.raises(CellError, match=says("check_cell: Derived()", *facts)):
        rnnkit.check_cell(Derived)


CHANGED = [
    (ByHand, "BY_HAND", 3.0, ("cell ByHand:", "BY_HAND")),
    (Activated, "SHIFT", 3.0, ("activation Shifted:", "SHIFT")),
    (Primitive, "STEEP", 3.0, ("cell Primitive:", "STEEP")),
    (ByHand, "shifted", lambda a: a + BY_HAND, ("cell ByHand: a function",)),
]


@pytest.mark.parametrize(("kind", "name", "changed", "facts"), CHANGED)
def test_changed_constant_is_not_compiled(kind, name, changed, facts, monkeypatch):
    net, before = rnnkit.Network(kind, 2, 3, seed=0, dtype="float64"), digests(kind)
    monkeypatch.setattr(HERE, name, changed)
    assert digests(kind) == before
    with pytest.raises(CellError, match=says(*facts, "changed", "define the class again")):
        net.infer(X)
