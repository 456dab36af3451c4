"""What a call of a helper function in an equation means: what Python means by it, or an error that names the line."""

import functools
import inspect
import math
from typing import NamedTuple

import numpy as np
import pytest
from messages import raises, says

import rnnkit
from rnnkit.cells import CellError, cell, clip, derivative, forward, tanh

rate = 5.0  # which the parameters below must not be taken for
act = math.sin


def scaled(x, *, rate=2.0):
    return rate * x


def two(x, /, y, *, by=0.5, to):
    return x - y * by + to


def through(x, act=math.tanh):
    return act(x)


K = np.float32(0.1)


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


def wavy(x, by=0.5):
    return math.sin(by * x)


@derivative(wavy)
def of_wavy(x, by=0.5):
    return by * math.cos(by * x), x * math.cos(by * x)


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


def cell_of(function):
    class Mine(NamedTuple):
        p: float = 0.7

    Mine.step = forward("h")(function)
    return cell(gates="a b")(Mine)


EQUATIONS = {
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
    "default of a function with a derivative": lambda self, a, b: wavy(a) + wavy(b, 0.75) + wavy(by=a, x=b),
    "paths that go on": lambda self, a, b: ways(a, b) + ways(b, a),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUATIONS)
def test_call_means_what_python_means(name):
    function = EQUATIONS[name]
    kind = cell_of(function)
    rnnkit.check_cell(kind)
    (loop,) = (stage for stage in kind.declaration.stages if not stage.is_gradient)
    for numbers in ((0.4, -1.3), (-0.4, 1.3), (-1.1, -0.9), (0.3, 0.2)):
        given = dict(zip("ab", numbers, strict=True))
        found = loop.function(kind(), *(given[one] for one in loop.reads))
        found = found[loop.writes.index("h")] if isinstance(found, tuple) else found
        assert found == pytest.approx(function(kind(), *map(np.float64, numbers)), rel=1e-14)


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


def early(x):
    y = act(x) if x > 1e9 else x  # noqa: F823
    act = y
    return act


def shadowed(x, math=2.0):
    return math.tanh(x) if x > 1e9 else math * x


# An equation, the helper that the error names, or None for the equation, how far below its first line, and the message.
REFUSED = [
    (lambda self, a, b: stars(a, b), stars, 0, "equations | parameter *numbers | name each parameter"),
    (lambda self, a, b: named_stars(a) + b, named_stars, 0, "equations | parameter **others | name each parameter"),
    (lambda self, a, b: text(a) + b, text, 1, "equations | str | `mode` | only numbers"),
    (lambda self, a, b: late(a) + b, late, 5, "equations | `rate` | not assigned before"),
    (lambda self, a, b: early(a) + b, early, 1, "equations | `act` | not assigned before"),
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
]


@pytest.mark.parametrize(("function", "helper", "below", "message"), REFUSED)
def test_wrong_call_is_refused_by_line(function, helper, below, message):
    named = helper or function
    where = f"stage {named.__name__} (test_calls_in_equations.py:{named.__code__.co_firstlineno + below})"
    with raises(CellError, f"cell Mine: {where} | {message}"):
        cell_of(function)


def test_derivative_of_other_arguments_is_refused():
    def one(x, y):
        return x * y

    derivative(one)(lambda x: 1.0)
    with pytest.raises(CellError, match=says("cell Mine:", "too many positional", "arguments of the function")):
        cell_of(lambda self, a, b: tanh(one(a, b)))


def test_inputs_without_a_value_are_not_compared():
    """Python raises where a kernel computes a NaN that it does not choose."""

    def eager(self, a, b):
        y = math.log(a)
        return y if a > 0 else b

    assert all(row.right for row in rnnkit.check_cell(cell_of(eager)))
