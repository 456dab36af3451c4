"""What a gradient is derived from and what it is refused for, in single numbers: no kernel is compiled."""

import math
import re
from typing import NamedTuple

import numpy as np
import pytest
from messages import raises, says

import rnnkit
from rnnkit import cells
from rnnkit.cells import CellError, Gate, cell, clip, derivative, exp, fma, forward, gradient, sigmoid, tanh, value
from rnnkit_kernels.cells.declaration import Product

RATE = 0.25


def of(function, **said):
    """A cell whose h is this function of two gates."""

    class Mine(NamedTuple):
        p: float = 0.7
        flag: bool = False

    Mine.step = forward("h")(function)
    return cell(gates="a b", **said)(Mine)


def twice(x, by=2):
    return by * x


def early(x):
    if x > 0.2:
        return x * x
    elif x < -0.5:
        return -x
    return 0.5 * x


def several(x, y):
    return x + y, x * y


def again(x):
    return again(x) if x > 3 else x


@derivative(math.erf)
def of_erf(x):
    return 2 / math.sqrt(math.pi) * exp(-x * x)


def steep(x, y):
    return math.hypot(x, y)


@derivative(steep)
def of_steep(x, y):
    return x / steep(x, y), y / steep(x, y)


EQUATIONS = {
    "functions": lambda self, a, b: sigmoid(a) * tanh(b) + exp(a / 4) - fma(a, b, 0.5) * cells.softplus(b),
    "math": lambda self, a, b: math.sqrt(1 + a * a) + math.log(2 + b * b) + math.log1p(a * a) + math.expm1(b / 3),
    "angles": lambda self, a, b: math.sin(a) * math.cos(b) + math.exp(a / 3) + math.tanh(b),
    "powers": lambda self, a, b: a**2 + b**3 + (1 + a * a) ** 0.5 + (1 + b * b) ** self.p + a**1,
    "quotient": lambda self, a, b: a / (2 + b * b) - b / 3 + 2 / (1 + a * a),
    "constants": lambda self, a, b: RATE * a + math.pi * b * (1 if self.flag else self.p) - (-b) + (+a),
    "helpers": lambda self, a, b: twice(a) + twice(b, by=self.p) + early(a) + early(b),
    "kinks": lambda self, a, b: max(a, 0, b) + min(a, 0.3) + abs(b) + clip(a, -1, 1) * 2 + max(0.1, b),
    "conditions": lambda self, a, b: (a if a > 0 and not b > 1 else b) + (a * b if 0.1 < a < 2 or b == 0 else b),
    "flags": lambda self, a, b: (a if self.flag else b) * (b if not self.flag else 2),
    "given": lambda self, a, b: math.erf(a) + steep(a, b),
    "division": lambda self, a, b: a / b if b != 0 else a,
    "not taken": lambda self, a, b: (math.sqrt(a) if a > 0.01 else b) * b,
}


@pytest.mark.parametrize("name", EQUATIONS)
@pytest.mark.parametrize("flag", [False, True])
def test_gradient_of_the_equations_is_right(name, flag):
    kind = of(EQUATIONS[name])
    table = rnnkit.check_cell(kind(flag=flag))
    assert all(row.right and row.trials > 10 for row in table), table


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


def loop(self, a, b):
    for _ in range(3):
        a = a * b
    return a


def forever(self, a, b):
    while a > 0:
        a = a - 1
    return a + b


def kept_tuple(self, a, b):
    pair = several(a, b)
    return pair[0]


def one_branch(self, a, b):
    if a > 0:
        c = b
    return c + a if a > 0 else b


# A function, how far below its first line the error is, and what the error says.
REFUSED = [
    (loop, 1, "loop | `for _ in range(3):` | unroll | @gradient"),
    (forever, 1, "loop | `while a > 0:` | unroll"),
    (kept_tuple, 1, "tuple | `pair`"),
    (one_branch, 3, "one branch | `c`"),
    (lambda self, a, b: math.gamma(a) + b, 0, "function gamma | `math.gamma(a)` | rnnkit.cells | @derivative(gamma)"),
    (lambda self, a, b: np.tanh(a) + b, 0, "function tanh | `np.tanh(a)` | rnnkit.cells.tanh | @gradient"),
    (lambda self, a, b: np.maximum(a, 0) + b, 0, "`np.maximum(a, 0)` | max"),
    (lambda self, a, b: np.sqrt(a * a) + b, 0, "`np.sqrt(a * a)` | math.sqrt"),
    (lambda self, a, b: np.arctan(a) + b, 0, "`np.arctan(a)` | rnnkit.cells and math"),
    (lambda self, a, b: exp(a) ** b, 0, "power | `exp(a) ** b` | exp(y * math.log(x))"),
    (lambda self, a, b: a // 1 + b, 0, "FloorDiv | `a // 1` | + - * / | **"),
    (lambda self, a, b: a * (b > 0), 0, "condition | number | `b > 0` | `1 if ... else 0`"),
    (lambda self, a, b: a if b else -a, 0, "number | condition | `b` | x != 0"),
    (lambda self, a, b: [a, b][0], 0, "Subscript | `[a, b][0]`"),
    (lambda self, a, b: self.q * a + b if a > 1e9 else b, 0, "q | parameter | `self.q` | field"),
]


@pytest.mark.parametrize(("function", "below", "message"), REFUSED)
def test_equation_without_a_gradient_is_refused_by_line(function, below, message):
    where = f"stage {function.__name__} (test_derived_rules.py:{function.__code__.co_firstlineno + below})"
    with raises(CellError, f"cell Mine: {where} | equations | {message}"):
        of(function)


def test_recursive_function_is_refused():
    with pytest.raises(CellError, match=says("cell Mine: stage again", "function", "itself", "`again(x)`", "unroll")):
        of(lambda self, a, b: again(a) + b)


def test_function_without_its_source_is_refused():
    space = {"tanh": tanh}
    exec("def nowhere(self, a, b):\n    return tanh(a * b)", space)
    with pytest.raises(CellError, match=says("cell Mine: stage nowhere", "source", "gradient")):
        of(space["nowhere"])


@pytest.mark.parametrize("said", [{"vectors": "v"}, {"scalars": "v"}, {"inputs": "v"}])
def test_unread_name_is_refused(said):
    with pytest.raises(CellError, match=says("cell Mine: v", "stage", "none")):
        of(lambda self, a, b: a * b, **said)
    with pytest.raises(CellError, match=says("cell Mine: b", "stage", "none")):
        of(lambda self, a: a * a)


def test_slots_of_a_derived_cell_are_refused():
    with pytest.raises(CellError, match=says("cell Mine: slots", "gradients", "by hand")):
        of(lambda self, a, b: a * b, slots="s")


def test_derivative_of_no_function_is_refused():
    with pytest.raises(CellError, match=says("@derivative: function", "a function", 3)):
        derivative(3)
    with pytest.raises(CellError, match=says("@derivative: the derivative", "a function", 4)):
        derivative(math.gamma)(4)

    def wide(x, y):
        return math.copysign(x, y)

    derivative(wide)(lambda x, y: 1.0)
    with pytest.raises(CellError, match=says("", "derivative of wide", 2, 1)):
        of(lambda self, a, b: wide(a, b))


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
