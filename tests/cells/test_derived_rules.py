"""What equations mean, calls of helper functions above all, and what their gradient is derived from, in single numbers:
no kernel is compiled."""

import functools
import inspect
import math
import re
from typing import NamedTuple

import numpy as np
import pytest
from declared_cells import of

import rnnkit
from rnnkit import cells
from rnnkit.cells import Gate, cell, clip, derivative, exp, fma, forward, gradient, sigmoid, tanh, value
from rnnkit_kernels.cells.declaration import Product

RATE = 0.25
rate = 5.0  # which the parameters below must not be taken for
act = math.sin
K = np.float32(0.1)


def times(x, by=2):
    return by * x


def early(x):
    if x > 0.2:
        return x * x
    elif x < -0.5:
        return -x
    return 0.5 * x


def several(x, y):
    return x + y, x * y


@derivative(math.erf)
def of_erf(x):
    return 2 / math.sqrt(math.pi) * exp(-x * x)


def scaled(x, *, rate=2.0):
    return rate * x


def two(x, /, y, *, by=0.5, to):
    return x - y * by + to


def through(x, act=math.tanh):
    return act(x)


def float32(x, k=K):
    return k * x


def chosen(x, twice=False):
    return 2 * x if twice else x


def replaced(x, k=2.0):
    if x > 0:
        k = 3.0
    return k * x


def twice(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x) * 2

    return wrapper


@twice
def line(x, k=3.0):
    return k * x


def told(x):
    return x * x


told.__signature__ = inspect.signature(two)


@derivative(math.atan2)
def of_atan2(y, x):
    return x / (x * x + y * y), -y / (x * x + y * y)


def grown(x, by=0.5):
    return math.exp(by * x)


@derivative(grown)
def of_grown(x, by=0.5):
    return by * grown(x, by), x * grown(x, by)


def ways(x, y):
    """Falls out of its first `if` on two of four paths."""
    if x > 0:
        if y > 0:
            return x
        z = 2 * y
    else:
        z = x * y
        if y < -0.5:
            return z - 1
    return z + x


EQUATIONS = {
    "functions": lambda self, a, b: sigmoid(a) * tanh(b) + exp(a / 4) - fma(a, b, 0.5) * cells.softplus(b),
    "math": lambda self, a, b: math.sqrt(1 + a * a) + math.log(2 + b * b) + math.log1p(a * a) + math.expm1(b / 3),
    "angles": lambda self, a, b: math.sin(a) * math.cos(b) + math.exp(a / 3) + math.tanh(b),
    "powers": lambda self, a, b: a**2 + b**3 + (1 + a * a) ** 0.5 + (1 + b * b) ** self.p + a**1,
    "quotient": lambda self, a, b: a / (2 + b * b) - b / 3 + 2 / (1 + a * a),
    "constants": lambda self, a, b: RATE * a + math.pi * b * (1 if self.flag else self.p) - (-b) + (+a),
    "helpers": lambda self, a, b: times(a) + times(b, by=self.p) + early(a) + early(b),
    "kinks": lambda self, a, b: max(a, 0, b) + min(a, 0.3) + abs(b) + clip(a, -1, 1) * 2 + max(0.1, b),
    "conditions": lambda self, a, b: (a if a > 0 and not b > 1 else b) + (a * b if 0.1 < a < 2 or b == 0 else b),
    "flags": lambda self, a, b: (a if self.flag else b) * (b if not self.flag else 2),
    "given": lambda self, a, b: math.erf(a) * b,
    "division": lambda self, a, b: a / b if b != 0 else a,
    "keyword-only default": lambda self, a, b: scaled(a) + b,
    "keyword-only argument": lambda self, a, b: scaled(a, rate=b),
    "every kind of parameter": lambda self, a, b: two(a, b, to=3.0) + two(a, to=b, y=self.p, by=a),
    "function as a default": lambda self, a, b: through(a) + b,
    "float32 default": lambda self, a, b: float32(a) + b,
    "condition as an argument": lambda self, a, b: chosen(a, twice=True) + chosen(b, a > b) + chosen(a),
    "default that one branch replaces": lambda self, a, b: replaced(a) + b,
    "wrapped function": lambda self, a, b: line(a) + b,
    "false __signature__": lambda self, a, b: told(a) + b,
    "keywords of known functions": lambda self, a, b: clip(a, high=0.5, low=-0.5) + math.atan2(a, 2 + b * b),
    "default of a function with a derivative": lambda self, a, b: grown(a) + grown(b, 0.75) + grown(by=a, x=b),
    "paths that go on": lambda self, a, b: ways(a, b) + ways(b, a),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUATIONS)
@pytest.mark.parametrize("flag", [False, True])
def test_equations_mean_what_python_means_and_have_the_right_gradient(name, flag):
    function, cell = EQUATIONS[name], of(EQUATIONS[name])(flag=flag)
    table = rnnkit.check_cell(cell)
    assert all(row.right and row.trials > 10 for row in table), table
    (loop,) = (stage for stage in cell.declaration.stages if not stage.is_gradient)
    for numbers in ((0.4, -1.3), (-0.4, 1.3), (-1.1, -0.9), (0.3, 0.2)):
        given = dict(zip("ab", numbers, strict=True))
        found = loop.function(cell, *(given[one] for one in loop.reads))
        found = found[loop.writes.index("h")] if isinstance(found, tuple) else found
        assert found == pytest.approx(function(cell, *map(np.float64, numbers)), rel=1e-14)


def test_gradient_of_statements_is_right():
    @cell(gates="a b")
    class Mine(NamedTuple):
        flag: bool = False

        @forward("h")
        def step(self, a, b):
            """Say something."""
            total, times = several(a, b)
            x: float = total * 2
            x += times
            x /= 2
            y, z = w, _ = x, a
            if self.flag:
                y = -y
            if a > 0.5:
                pass
            else:
                y = y * z
                z = 2 * z
            first, second = (y, z) if b > 0 else (z, y)
            return tanh(first) + second * w * _

    for flag in (False, True):
        assert all(row.trials > 10 for row in rnnkit.check_cell(Mine(flag=flag)))


def test_activation_parameter_is_differentiated():
    @cell(gates="a b", smooth=False)
    class Mine(NamedTuple):
        act: cells.Activation = cells.LeakyRelu(0.2)
        step = forward("h")(lambda self, a, b: value(self.act, a * b))

    assert "slope(self.act" in cells.derived_source(Mine)
    rnnkit.check_cell(Mine)


def test_derivative_at_a_kink_is_that_of_the_left():
    def at_zero(function):
        [back] = [stage for stage in of(function).declaration.stages if stage.is_gradient]
        found = back.function(of(function)(), *(1.0 if name == "dh" else 0.0 for name in back.reads))
        return dict(zip(back.writes, found, strict=True))["da"]

    assert at_zero(lambda self, a, b: max(a, 0) + b) == 0
    assert at_zero(lambda self, a, b: (a if a > 0 else 0) + b) == 0
    assert at_zero(lambda self, a, b: abs(a) + b) == 0
    assert at_zero(lambda self, a, b: clip(a, 0, 1) + b) == 0
    assert at_zero(lambda self, a, b: max(a, b)) == 1  # of two that vary: by the first


def test_functions_at_the_ends_of_their_range():
    assert sigmoid(1000.0) == 1 and sigmoid(-1000.0) == 0 and sigmoid(0.0) == 0.5
    assert tanh(math.inf) == 1
    assert [clip(x, -1.0, 2.0) for x in (-3.0, 0.5, 3.0)] == [-1, 0.5, 2]
    assert math.isnan(clip(math.nan, -1.0, 2.0))


def test_branch_that_is_not_taken_adds_no_nan():
    """The derivative of sqrt is infinite at 0, and a NaN below it; it is not multiplied by 0."""
    kind = of(lambda self, a, b: math.sqrt(a) if a > 0 else b)
    [back] = [stage for stage in kind.declaration.stages if stage.is_gradient]
    text = cells.derived_source(kind)
    assert re.search(r"if .* else 0", text), text
    assert "a" in "".join(back.reads)


def test_declaration_says_what_is_kept():
    @cell(gates="i f g o", states="c")
    class Mine(NamedTuple):
        @forward("c h")
        def step(self, i, f, g, o, c_prev):
            c = fma(sigmoid(f), c_prev, sigmoid(i) * tanh(g))
            return c, sigmoid(o) * tanh(c)

    said = Mine.declaration
    assert said.keeps == {"f": "sigmoid(f)", "i": "sigmoid(i)", "g": "tanh(g)", "o": "sigmoid(o)"}
    assert said.slots == ("i", "f", "g", "o") and said.extra_slots == () and said.derivation_version == 1
    assert [stage.writes for stage in said.equations] == [("c", "h")]
    loops = [stage.function.__name__ for stage in said.phases[0].forward]
    assert loops == ["step", "step_2"]  # tanh of c waits for the gates


def test_condition_and_overwritten_gate_are_kept():
    @cell(gates="a b", states="s", smooth=False)
    class Mine(NamedTuple):
        first = forward("a s t")(lambda self, a, b, s_prev: ((a * b if a > b else b), a * s_prev, s_prev * b))
        second = forward("h")(lambda self, a, t, s_prev: tanh(a * t) * s_prev)  # the state is read by two stages

    assert all(row.trials > 10 for row in rnnkit.check_cell(Mine))
    assert "a > b" in Mine.declaration.keeps.values() or "a" in Mine.declaration.keeps.values()


def eager(self, a, b):
    y = math.log(a)
    return y if a > 0 else b


@pytest.mark.parametrize("function", [eager, lambda self, a, b: (math.sqrt(a) if a > 0.01 else b) * b])
def test_inputs_without_a_value_are_not_compared(function):
    """Python raises where a kernel computes a NaN that it does not choose."""
    assert all(row.right and row.trials > 10 for row in rnnkit.check_cell(of(function)))


def test_phases_have_products_of_every_kind():
    gates = [Gate("x", None), Gate("a"), Gate("b", "s_prev"), Gate("c", "s", apart="q")]
    gates += [Gate("e", "m", input=False), Gate("f", "s", input=False)]

    @cell(gates=gates, states="s")
    class Mine(NamedTuple):
        state = forward("s")(lambda self, a, b, x: tanh(a) * b + x)
        middle = forward("m")(lambda self, q, f: q * f)
        output = forward("h")(lambda self, c, e: tanh(c) * e)

    said = Mine.declaration
    products = [[(one.source, *said.names_of(one)) for one in phase.products] for phase in said.phases]
    assert products == [[("h_prev", "a"), ("s_prev", "b")], [("s", "q", "f")], [("m", "e")]]
    assert said.products[0] == Product(None, range(4), range(0)) and set(said.names_of(said.products[0])) == set("xabc")
    rnnkit.check_cell(Mine)


def test_gradient_by_hand_is_not_derived():
    @cell(gates="a b")
    class Mine(NamedTuple):
        step = forward("h")(lambda self, a, b: a * b)
        back = gradient("da db")(lambda self, a, b, dh: (dh * b, dh * a))

    assert Mine.declaration.derivation_version is None and "da db" in cells.derived_source(Mine)
