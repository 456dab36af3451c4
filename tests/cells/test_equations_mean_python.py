"""What the engine computes from equations is what Python computes from them: drawn modules, whose derived loops are
compared with the stages as they are written, called on numbers. A few are compiled."""

import importlib.util
from itertools import count

import numpy as np
import pytest
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


SETTINGS = dict(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None)


@given(modules())
@settings(max_examples=40, **SETTINGS)
def test_derived_loops_equal_the_equations(folder, text):
    assert_same(text, folder)


@pytest.mark.weekly
@given(modules())
@settings(max_examples=2000, **SETTINGS)
def test_more_derived_loops_equal_the_equations(folder, text):
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
    net = rnnkit.Network(kind, 3, 4, seed=0, dtype="float64")
    rng = np.random.default_rng(0)
    x, row = rng.normal(size=(5, 2, 3)), rng.normal(size=(5, 2, 4))
    v = {name.removesuffix("_l0"): view for name, view in net.views.items()}
    r_of, b_of = v["weight_hh"].reshape(2, 4, 4), v["bias_hh"].reshape(2, 4)
    h, units, gates, wanted = np.zeros((2, 4)), np.zeros((2, 4)), np.zeros((2, 4)), []
    for t in range(5):
        of_w, of_y = np.split(x[t] @ v["weight_ih"].T + v["bias_ih"], 2, axis=1)
        hidden = np.tanh(of_w * (h @ r_of[0].T + b_of[0]))
        units, written = 0.5 * units + hidden * row[t], 0.25 * hidden + 2
        y = of_y + written @ r_of[1].T + b_of[1]
        gates = 0.25 * gates + y
        h = 0.75 * h + np.tanh(y) * v["weights"] + np.tanh(written + v["sigmoid"] * units)
        wanted.append(h)
    found = net.forward(x, inputs={"row": row})
    np.testing.assert_allclose(found.y, wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.cy[0][0], units, rtol=0, atol=1e-12)
    dy = rng.normal(size=found.y.shape)
    gradients = net.backward(found.workspace, dy)
    step = 1e-6 * rng.normal(size=net.weights.shape)
    losses = []
    for sign in (1, -1):
        net.weights += sign * step
        losses.append((net.forward(x, inputs={"row": row}).y * dy).sum())
        net.weights -= sign * step
    assert (gradients.dw * step).sum() == pytest.approx((losses[0] - losses[1]) / 2, rel=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(modules())
@settings(max_examples=4, **SETTINGS)
def test_compiled_kernels_equal_the_equations(folder, dtype, text):
    """One step from h = 0: the kernel against the stages, called on numbers."""
    kind = cell_of(text, folder)
    net, x = rnnkit.Network(kind, 2, 3, seed=0, dtype=dtype), np.ones((1, 4, 2), dtype)
    x *= np.linspace(-1, 1, 4, dtype=dtype)[:, None]
    net.views["weight_hh_l0"][:] = 0
    net.views["weight_hh_l0"][3:][np.diag_indices(3)] = WEIGHT  # what R multiplies is of the same unit
    net.views["bias_hh_l0"][3:] = 0
    vector = kind.declaration.vectors[0].name
    of_w = (x[0] @ net.views["weight_ih_l0"].T + net.views["bias_ih_l0"]).reshape(4, 2, 3)
    wanted = np.zeros((4, 3))
    with np.errstate(all="ignore"):
        for row in range(4):
            for unit in range(3):
                numbers = [*of_w[row, :, unit], net.views["bias_hh_l0"][unit], 0, net.views[f"{vector}_l0"][unit], 0]
                try:
                    wanted[row, unit] = step(kind.declaration.as_written, kind(), numbers)["h"]
                except ArithmeticError:
                    wanted[row, unit] = np.nan
    y = net.infer(x).y[0]
    is_near = np.isfinite(wanted) & (abs(wanted) < 1e3)
    np.testing.assert_allclose(y[is_near], wanted[is_near], rtol=1e-4 if dtype == "float32" else 1e-11, atol=1e-4)
