"""Equations that are refused, by line, and those without a derivative."""

import math

import numpy as np
import pytest
from declared_cells import of
from messages import raises

from rnnkit.cells import CellError, derivative, exp, tanh

BASE, GOOGOL = -8.0, 10**400
rate = 5.0  # which the parameters below must not be taken for
act = math.sin


def several(x, y):
    return x + y, x * y


def again(x):
    return again(x) if x > 3 else x


def scaled(x, *, rate=2.0):
    return rate * x


def two(x, /, y, *, by=0.5, to):
    return x - y * by + to


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


def way(x, y):
    if x > 0:
        if y > 0:
            return x
        z = 2 * y
    else:
        z = x * y
        if y < -0.5:
            return z, y
    return z + x


def stars(*numbers):
    return numbers[0]


def named_stars(x, **others):
    return x


def text(x, mode="a"):
    return x if mode == "a" else 2 * x


def late(x):
    if x < 1e9:
        rate = 2.0
        return rate * x
    else:
        return rate + x


def sooner(x):
    y = act(x) if x > 1e9 else x  # noqa: F823
    act = y
    return act


def shadowed(x, math=2.0):
    return math.tanh(x) if x > 1e9 else math * x


# An equation, how far below its first line the error is, and what it says.
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
# The same of calls, with the helper that the error names, or None for the equation.
CALLS = [
    (lambda self, a, b: stars(a, b), stars, 0, "equations | parameter *numbers | name each parameter"),
    (lambda self, a, b: named_stars(a) + b, named_stars, 0, "equations | parameter **others | name each parameter"),
    (lambda self, a, b: text(a) + b, text, 1, "equations | str | `mode` | only numbers"),
    (lambda self, a, b: late(a) + b, late, 5, "equations | `rate` | not assigned before"),
    (lambda self, a, b: sooner(a) + b, sooner, 1, "equations | `act` | not assigned before"),
    (lambda self, a, b: shadowed(a) + b, shadowed, 1, "equations | `math` | another name"),
    (lambda self, a, b: way(a, b), way, 7, "equations | 2 results on one path and 1 on another"),
    (lambda self, a, b: a if a < 1e9 else scaled(b, 2.0), None, 0, "`scaled(b, 2.0)` | too many positional"),
    (lambda self, a, b: a if a < 1e9 else two(b, b), None, 0, "`two(b, b)` | 'to'"),
    (lambda self, a, b: a if a < 1e9 else scaled(b, by=2.0), None, 0, "`scaled(b, by=2.0)` | 'by'"),
    (lambda self, a, b: a if a < 1e9 else stars(*(a, b)), None, 0, "star"),
    (lambda self, a, b: a if a < 1e9 else scaled(**b), None, 0, "star"),
    (lambda self, a, b: a + math.log(2 + b * b, 2.0), None, 0, "`math.log(2 + b * b, 2.0)` | 2 arguments | pass 1"),
    (lambda self, a, b: a if a < 1e9 else abs(a, b), None, 0, "`abs(a, b)` | 2 arguments | pass 1"),
    (lambda self, a, b: a if a < 1e9 else rate(b), None, 0, "function"),
    (lambda self, a, b: GOOGOL * a if a > 1e9 else b, None, 0, "int beyond float64"),
    (lambda self, a, b: 10**200 * 10**200 * a if a > 1e9 else b, None, 0, "int beyond float64"),
    (lambda self, a, b: BASE**0.5 * a if a > 1e9 else b, None, 0, "complex | numbers"),
    (lambda self, a, b: again(a) + b, again, 1, "function | itself | `again(x)` | unroll"),
]
CASES = [(function, function, below, f"equations | {text}") for function, below, text in REFUSED] + CALLS


@pytest.mark.parametrize(("function", "named", "below", "message"), CASES)
def test_equation_is_refused_by_line(function, named, below, message):
    named = named or function
    where = f"stage {named.__name__} (test_refused_equations.py:{named.__code__.co_firstlineno + below})"
    with raises(CellError, f"cell Mine: {where} | {message}"):
        of(function)


def wide(x, y):
    return math.copysign(x, y)


def narrow(x, y):
    return x * y


def product(self, a, b):
    return a * b


derivative(wide)(lambda x, y: 1.0)
derivative(narrow)(lambda x: 1.0)
exec("def nowhere(self, a, b):\n    return tanh(a * b)", NOWHERE := {"tanh": tanh})
OTHERS = [
    (NOWHERE["nowhere"], {}, "stage nowhere | source | gradient"),
    *((product, {kind: "v"}, "v | stage | none") for kind in ("vectors", "scalars", "inputs")),
    (lambda self, a: a * a, {}, "b | stage | none"),
    (product, {"slots": "s"}, "slots | gradients | by hand"),
    (lambda self, a, b: wide(a, b), {}, "| derivative of wide | 2 | 1"),
    (lambda self, a, b: tanh(narrow(a, b)), {}, "| too many positional | arguments of the function"),
]


@pytest.mark.parametrize(("function", "said", "message"), OTHERS)
def test_equation_without_a_derivative_is_refused(function, said, message):
    with raises(CellError, f"cell Mine: {message}"):
        of(function, **said)


def test_derivative_of_no_function_is_refused():
    with raises(CellError, "@derivative: function | a function | 3"):
        derivative(3)
    with raises(CellError, "@derivative: the derivative | a function | 4"):
        derivative(math.gamma)(4)
