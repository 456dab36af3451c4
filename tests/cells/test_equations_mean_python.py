"""What the engine computes from equations is what Python computes from them: drawn modules, whose derived loops are
compared with the stages as they are written, called on numbers."""

import importlib.util
from itertools import count

import numpy as np
import pytest
from cell_reference import differences, forward
from equation_texts import modules
from hypothesis import HealthCheck, given, settings

import rnnkit
from rnnkit.cpu.layer import _products
from rnnkit_kernels.operands import Sizes

NUMBERS = count()
WEIGHT = 0.7  # in place of R, where it multiplies what a stage writes
POINTS = np.random.default_rng(0).normal(size=(6, 20))
POINTS[0] = 0


def cell_of(text, folder):
    """The class of a module, which is written to a file and imported, as a user does."""
    name = f"drawn_{next(NUMBERS)}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Drawn


def step(declaration, cell, numbers):
    """All values of one unit after a step, by the functions of these stages."""
    names = [gate.name for gate in declaration.gates] + [gate.apart for gate in declaration.gates if gate.apart]
    names += [*(f"{state}_prev" for state in declaration.states), *(one.name for one in declaration.vectors), "h_prev"]
    values = dict(zip(names, map(np.float64, numbers), strict=False))
    for number, phase in enumerate(declaration.phases):
        for product in phase.products if number else ():
            for name in declaration.names_of(product):
                values[name] = values[name] + WEIGHT * values[product.source]
        for stage in phase.forward:
            found = stage.function(cell, *(values[name] for name in stage.reads))
            values |= zip(stage.writes, found if isinstance(found, tuple) else (found,), strict=True)
    return {name: float(values[name]) for name in ("h", *declaration.states, *declaration.sources) if name in values}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("modules")


def assert_same(text, folder):
    kind = cell_of(text, folder)
    declaration = kind.declaration
    with np.errstate(all="ignore"):
        for cell in kind(), kind(factor=1.5, flag=True):
            for numbers in POINTS:
                try:
                    wanted = step(declaration.as_written, cell, numbers)
                except ArithmeticError:  # there is nothing to compare with
                    continue
                assert step(declaration, cell, numbers) == pytest.approx(wanted, rel=1e-12, abs=1e-12, nan_ok=True)
    starts = {block.name: block.start for block in rnnkit.weight_layout(rnnkit.RNNDescriptor(kind, 3, 4))}
    w, *of_r, _, _ = _products(declaration, Sizes(4, 4, 3), starts, "_l0")
    assert (w.start, w.depth) == (starts["weight_ih_l0"], 3)
    assert all((one.start, one.depth) == (starts["weight_hh_l0"], 4) for one in of_r)


@given(modules())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None)
def test_derived_loops_equal_the_equations(folder, text):
    assert_same(text, folder)


ENGINE = """
from typing import NamedTuple
from rnnkit.cells import Gate, cell, forward, tanh

GATES = [Gate("w", apart="rows"), Gate("y", multiplies="x")]


def helper(x, /, *, rate=0.5, tanh=2.0):
    return rate * x + tanh


@cell(gates=GATES, states="units gates", vectors="sigmoid", scalars="weights", inputs="row")
class Drawn(NamedTuple):
    states: float = 0.75

    @forward("units x")
    def tanh(self, w, rows, units_prev, row):
        hidden = tanh(w * rows)
        return 0.5 * units_prev + hidden * row, helper(hidden, rate=0.25)

    @forward("gates h")
    def h(self, y, x, weights, gates_prev, units, h_prev, sigmoid):
        h = self.states * h_prev + tanh(y) * weights
        return gates_prev * 0.25 + y, h + tanh(x + sigmoid * units)
"""


def test_names_of_the_engine_are_taken_as_the_cell_has_them(folder):
    """Compiled: a value x that R multiplies is not the network's input, a stage tanh is not the function."""
    kind = cell_of(ENGINE, folder)
    rnnkit.check_cell(kind)
    net, rng = rnnkit.Network(kind, 3, 4, seed=0, dtype="float64"), np.random.default_rng(0)
    x, inputs = rng.normal(size=(5, 2, 3)), {"row": rng.normal(size=(5, 2, 4))}
    hx, *states = np.zeros((3, 1, 2, 4))
    found = net.forward(x, inputs=inputs)
    y, _, final = forward(net, x, hx, states, inputs=inputs)
    for own, wanted in zip((found.y, *found.cy), (y, *final), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=0, atol=1e-12)
    dy = rng.normal(size=y.shape)
    back = net.backward(found.workspace, dy)
    gradients = {"x": back.dx} | back.inputs | rnnkit.weight_views(net.desc, back.dw)
    cotangents = dy, np.zeros_like(hx), [np.zeros_like(one) for one in states]
    slopes = differences(net, x, hx, states, cotangents, rng, inputs=inputs)
    for name, own in gradients.items():
        direction, slope, curved = slopes[name]
        assert abs((own * direction).sum() - slope) <= 1e-7 * (1 + abs(slope)) + 3 * curved, name
