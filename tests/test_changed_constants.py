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

SCALE = BY_HAND = SHIFT = STEEP = SLOPED = 1.0
HERE = sys.modules[__name__]
X = np.ones((1, 1, 2))


@cell(gates="a")
class Derived(NamedTuple):
    @forward("h")
    def step(self, a):
        return tanh(SCALE * a)


def defined_again():
    Again = type("Derived", (NamedTuple("Derived", []),), {"step": Derived.declaration.equations[0]})
    return cell(gates="a")(Again)


def shifted(a):
    return a * BY_HAND


@cell(gates="a")
class ByHand(NamedTuple):
    @forward("h")
    def step(self, a):
        return shifted(a)

    @gradient("da")
    def back(self, dh):
        return dh * BY_HAND


@Activation.register
class Shifted(NamedTuple):
    def value(self, x):
        return x + SHIFT

    def slope(self, y):
        return 1


@cell(gates="a")
class Activated(NamedTuple):
    act: Activation = Shifted()

    @forward("h")
    def step(self, a):
        return value(self.act, a)


def steep(x):
    return STEEP * x


@derivative(steep)
def of_steep(x):
    return STEEP


@cell(gates="a")
class Primitive(NamedTuple):
    @forward("h")
    def step(self, a):
        return steep(a)


def digests(kind):
    return code_key(kind), source_of(kind)


def test_a_derived_cell_keeps_the_value_and_the_digests(monkeypatch, tmp_path):
    before, (loop, _) = digests(Derived), Derived.declaration.stages
    net = rnnkit.Network(Derived, 2, 3, seed=0)
    monkeypatch.setattr(HERE, "SCALE", 3.0)
    assert digests(Derived) == before
    assert loop.function(Derived(), 0.5) == pytest.approx((np.tanh(0.5),) * 2)
    net.save(tmp_path / "net")
    assert rnnkit.load(tmp_path / "net", cell=Derived) == net

    with pytest.raises(ValueError, match=says("", "Derived with other equations", before[1])):
        rnnkit.load(tmp_path / "net", cell=defined_again())


def test_check_cell_says_that_the_equations_have_changed(monkeypatch):
    monkeypatch.setattr(HERE, "SCALE", 3.0)
    with pytest.raises(CellError, match=says("check_cell: Derived()", "h=", "constant", "changed", "again")):
        rnnkit.check_cell(Derived)


@pytest.mark.parametrize(("kind", "constant", "name"), [
    (ByHand, "BY_HAND", "cell ByHand"), (Activated, "SHIFT", "activation Shifted"),
    (Primitive, "STEEP", "cell Primitive"),
])  # fmt: skip
def test_nothing_is_compiled_with_another_value(kind, constant, name, monkeypatch):
    net, before = rnnkit.Network(kind, 2, 3, seed=0, dtype="float64"), digests(kind)
    monkeypatch.setattr(HERE, constant, 3.0)
    assert digests(kind) == before
    with pytest.raises(CellError, match=says(f"{name}:", constant, "changed", "define the class again")):
        net.infer(X)


def test_a_function_that_is_defined_again_is_a_change(monkeypatch):
    net = rnnkit.Network(ByHand, 2, 4, seed=0, dtype="float64")
    monkeypatch.setattr(HERE, "shifted", lambda a: a + BY_HAND)
    with pytest.raises(CellError, match=says("cell ByHand: a function", "changed", "define the class again")):
        net.infer(X)
