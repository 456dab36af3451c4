"""What a gradient is derived from and what it is refused for, in single numbers: no kernel is compiled."""

import inspect
import math
import re
from typing import NamedTuple

import numpy as np
import pytest
from messages import says

import rnnkit
from rnnkit.cells import (
    Activation,
    CellError,
    Gate,
    LeakyRelu,
    cell,
    clip,
    derivative,
    derived_source,
    exp,
    fma,
    forward,
    gradient,
    sigmoid,
    slope,
    softplus,
    tanh,
    value,
)  # fmt: skip
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
    "functions": lambda self, a, b: sigmoid(a) * tanh(b) + exp(a / 4) - fma(a, b, 0.5) * softplus(b),
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
def test_equations(name, flag):
    kind = of(EQUATIONS[name])
    table = rnnkit.check_cell(kind(flag=flag))
    assert all(row.right and row.trials > 10 for row in table), table


def test_statements():
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


def test_an_activation_is_a_parameter():
    @cell(gates="a b", smooth=False)
    class Mine(NamedTuple):
        act: Activation = LeakyRelu(0.2)

        @forward("h")
        def step(self, a, b):
            return value(self.act, a * b)

    assert "slope(self.act" in derived_source(Mine)
    rnnkit.check_cell(Mine)


def test_a_kink_takes_the_derivative_on_its_left_or_none():
    def at_zero(function):
        [back] = [stage for stage in of(function).declaration.stages if stage.is_gradient]
        given = {name: 1.0 if name == "dh" else 0.0 for name in back.reads}
        found = back.function(of(function)(), *(given[name] for name in back.reads))
        return dict(zip(back.writes, found, strict=True))["da"]

    assert at_zero(lambda self, a, b: max(a, 0) + b) == 0
    assert at_zero(lambda self, a, b: (a if a > 0 else 0) + b) == 0
    assert at_zero(lambda self, a, b: abs(a) + b) == 0
    assert at_zero(lambda self, a, b: clip(a, 0, 1) + b) == 0
    assert at_zero(lambda self, a, b: max(a, b)) == 1  # of two that vary: by the first


def test_what_was_not_taken_adds_no_nan():
    """The derivative of sqrt is infinite at 0, and a NaN below it; it is not multiplied by 0."""
    kind = of(lambda self, a, b: (math.sqrt(a) if a > 0 else b))
    [back] = [stage for stage in kind.declaration.stages if stage.is_gradient]
    text = derived_source(kind)
    assert re.search(r"if .* else 0", text), text
    assert "a" in "".join(back.reads)


def test_what_is_kept_is_said():
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


def test_a_condition_and_an_overwritten_gate_are_kept():
    @cell(gates="a b", states="s", smooth=False)
    class Mine(NamedTuple):
        @forward("a s t")
        def first(self, a, b, s_prev):
            return (a * b if a > b else b), a * s_prev, s_prev * b

        @forward("h")
        def second(self, a, t, s_prev):  # the state is read by two stages
            return tanh(a * t) * s_prev

    assert all(row.trials > 10 for row in rnnkit.check_cell(Mine))
    assert "a > b" in Mine.declaration.keeps.values() or "a" in Mine.declaration.keeps.values()


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, one in enumerate(lines) if text in one)


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


def unknown(self, a, b):
    return math.gamma(a) + b


def recursive(self, a, b):
    return again(a) + b


def of_numpy(self, a, b):
    return np.tanh(a) + b


def of_numpy_by_name(self, a, b):
    return np.maximum(a, 0) + b


def of_numpy_and_math(self, a, b):
    return np.sqrt(a * a) + b


def of_numpy_alone(self, a, b):
    return np.arctan(a) + b


def varying(self, a, b):
    return exp(a) ** b


def one_branch(self, a, b):
    if a > 0:
        c = b
    return c + a if a > 0 else b


def bits(self, a, b):
    return a // 1 + b


def as_number(self, a, b):
    return a * (b > 0)


def as_condition(self, a, b):
    return a if b else -a


def of_slope(self, a, b):
    return slope(LeakyRelu(), a) + b


def listed(self, a, b):
    return [a, b][0]


def with_keyword(self, a, b):
    return twice(a, to=2) + b


def no_field(self, a, b):
    return self.q * a + b if a > 1e9 else b


def text_constant(self, a, b):
    return a + b if "x" == "y" else a


@pytest.mark.parametrize(("function", "text", "facts"), [
    (loop, "for _", ["loop", "`for _ in range(3):`", "unroll", "@gradient"]),
    (forever, "while a", ["loop", "`while a > 0:`", "unroll"]),
    (kept_tuple, "pair = ", ["tuple", "`pair`"]),
    (unknown, "gamma", ["function gamma", "`math.gamma(a)`", "rnnkit.cells", "@derivative(gamma)"]),
    (of_numpy, "tanh", ["function tanh", "`np.tanh(a)`", "rnnkit.cells.tanh", "@gradient"]),
    (of_numpy_by_name, "maximum", ["`np.maximum(a, 0)`", "max"]),
    (of_numpy_and_math, "sqrt", ["`np.sqrt(a * a)`", "math.sqrt"]),
    (of_numpy_alone, "arctan", ["`np.arctan(a)`", "rnnkit.cells and math"]),
    (varying, "** b", ["power", "`exp(a) ** b`", "exp(y * math.log(x))"]),
    (one_branch, "return c", ["one branch", "`c`"]),
    (bits, "//", ["FloorDiv", "`a // 1`", "+ - * /", "**"]),
    (as_number, "b > 0", ["condition", "number", "`b > 0`", "`1 if ... else 0`"]),
    (as_condition, "if b", ["number", "condition", "`b`", "x != 0"]),
    (listed, "[a, b]", ["Subscript", "`[a, b][0]`"]),
    (no_field, "self.q", ["q", "parameter", "`self.q`", "field"]),
])  # fmt: skip
def test_refused(function, text, facts):
    where = f"stage {function.__name__} (test_derived_rules.py:{line_of(function, text)})"
    with pytest.raises(CellError, match=says(f"cell Mine: {where}", "equations", *facts)):
        of(function)


def test_a_function_that_calls_itself_is_refused():
    with pytest.raises(CellError, match=says("cell Mine: stage again", "function", "itself", "`again(x)`", "unroll")):
        of(recursive)


def test_a_text_that_is_not_the_code_is_refused():
    space = {"tanh": tanh}
    exec("def nowhere(self, a, b):\n    return tanh(a * b)", space)
    with pytest.raises(CellError, match=says("cell Mine: stage nowhere", "source", "gradient")):
        of(space["nowhere"])


@pytest.mark.parametrize("said", [{"vectors": "v"}, {"scalars": "v"}, {"inputs": "v"}])
def test_what_nothing_reads_is_refused(said):
    with pytest.raises(CellError, match=says("cell Mine: v", "stage", "none")):
        of(lambda self, a, b: a * b, **said)
    with pytest.raises(CellError, match=says("cell Mine: b", "stage", "none")):
        of(lambda self, a: a * a)


def test_slots_are_for_gradients_by_hand():
    with pytest.raises(CellError, match=says("cell Mine: slots", "gradients", "by hand")):
        of(lambda self, a, b: a * b, slots="s")


def test_derivatives_are_of_functions():
    with pytest.raises(CellError, match=says("@derivative: function", "a function", 3)):
        derivative(3)
    with pytest.raises(CellError, match=says("@derivative: the derivative", "a function", 4)):
        derivative(math.gamma)(4)

    def wide(x, y):
        return math.copysign(x, y)

    derivative(wide)(lambda x, y: 1.0)
    with pytest.raises(CellError, match=says("", "derivative of wide", 2, 1)):
        of(lambda self, a, b: wide(a, b))


def test_products_of_every_kind():
    gates = [
        Gate("x", None), Gate("a"), Gate("b", "s_prev"), Gate("c", "s", apart="q"), Gate("e", "m", input=False),
        Gate("f", "s", input=False),
    ]

    @cell(gates=gates, states="s")
    class Mine(NamedTuple):
        @forward("s")
        def state(self, a, b, x):
            return tanh(a) * b + x

        @forward("m")
        def middle(self, q, f):
            return q * f

        @forward("h")
        def output(self, c, e):
            return tanh(c) * e

    said = Mine.declaration
    assert [[(one.source, said.names_of(one)) for one in phase.products] for phase in said.phases] == [
        [("h_prev", ("a",)), ("s_prev", ("b",))], [("s", ("q", "f"))], [("m", ("e",))],
    ]  # fmt: skip
    assert said.products[0] == Product(None, range(4), range(0)) and set(said.names_of(said.products[0])) == set("xabc")
    rnnkit.check_cell(Mine)


def test_by_hand_stays_possible():
    @cell(gates="a b")
    class Mine(NamedTuple):
        step = forward("h")(lambda self, a, b: a * b)

        @gradient("da db")
        def back(self, a, b, dh):
            return dh * b, dh * a

    assert Mine.declaration.derivation_version is None and "da db" in derived_source(Mine)
