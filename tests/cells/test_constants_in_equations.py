"""Constants in equations, compiled in float32 and float64: exponents, infinity, NaN, and numbers that do not fit."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from combinations import nightly
from messages import says

import rnnkit
from rnnkit.cells import CellError, cell, clip, forward, gradient, tanh

P = 1.5
HALF, TENTH = np.float64(0.5), np.float32(0.1)
GATES = " ".join(f"g{number}" for number in range(8))


def by(x, k=1e39):
    return k * x


def stage(self, g0, g1, g2, g3, g4, g5, g6, g7):
    """A gate for each kind of constant: one kernel is compiled for all."""
    powers = (1 + g0 * g0) ** 1.5 + (1 + g1 * g1) ** -P + (1 + g2 * g2) ** 2.0 + (2 + g2) ** -2 + g3**3
    infinite = clip(g4, 0.0, math.inf) + clip(g4, -0.5, 0.5) + min(g5, math.inf) + max(-math.inf, g5)
    kinds = HALF * g6 + TENTH * g6 + max(0.1, g7 if g7 > 0 else 0.5 * g7)
    return tanh(0.1 * powers + infinite + kinds) if g0 < math.inf else math.nan


@cell(gates=GATES)
class Derived(NamedTuple):
    step = forward("h")(stage)


@pytest.mark.parametrize("dtype", ["float32", nightly("float64")])
def test_constants_are_of_the_dtype(dtype):
    net, x = rnnkit.Network(Derived, 2, 3, seed=0, dtype=dtype), np.ones((1, 4, 2), dtype)
    x *= np.linspace(-2, 2, 4, dtype=dtype)[:, None]
    result = net.forward(x)
    views = net.views
    gates = (x[0] @ views["weight_ih_l0"].T + views["bias_ih_l0"] + views["bias_hh_l0"]).reshape(4, 8, 3)
    wanted = [[stage(None, *map(np.float64, own[:, unit])) for unit in range(3)] for own in gates]
    np.testing.assert_allclose(result.y[0], wanted, rtol=0, atol=1e-6 if dtype == "float32" else 1e-14)
    assert np.isfinite(net.backward(result.workspace, result.y).dw).all()
    rnnkit.check_cell(Derived)


def one(function, hand):
    class Mine(NamedTuple):
        step = forward("h")(function)

    if hand:
        Mine.back = gradient("dg")(lambda self, dh: dh)
    return cell(gates="g")(Mine)


@pytest.mark.parametrize("hand", [False, True])
@pytest.mark.parametrize(("function", "number", "rounded"), [
    (lambda self, g: tanh(1e39 * g), "1e+39", "inf"),
    (lambda self, g: tanh(by(g)), "1e+39", "inf"),
    (lambda self, g: g / (g * g + 1e-60), "1e-60", "0"),
])  # fmt: skip
def test_constant_that_does_not_fit_float32_is_refused(function, number, rounded, hand):
    kind, name = one(function, hand), "<lambda>" if hand else "stage"
    facts = "constants that fit float32", f"{number}, which rounds to {rounded}"
    with pytest.raises(CellError, match=says(f"cell Mine: stage {name}", *facts)):
        rnnkit.Network(kind, 2, 3, seed=0).infer(np.ones((1, 1, 2), np.float32))
