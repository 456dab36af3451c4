"""Derivative rules of the operations and functions in equations."""

import math
from types import BuiltinFunctionType, FunctionType

from .activations import softplus
from .expressions import ONE, ZERO, choice, const, expression, negative, product, quotient
from .functions import clip, exp, fma, sigmoid, slope, tanh, value
from .rules import CellError

_GIVEN = {}
_FORMS = {}  # (function, backend) -> function of arrays


def derivative(function, **forms):
    """Decorate a function to make it the derivative of `function`, which cells may then call.

    Parameters
    ----------
    function : callable
        Function of one or more numbers that Numba can compile: from `math`, or your own.
    **forms : callable
        The function for arrays, by backend: ``torch=torch.atan, jax=jax.numpy.arctan, numpy=numpy.arctan``. Only
        :func:`rnnkit.cells.step` and `unrolled` call them.

    Returns
    -------
    decorator
        For a function of the same arguments. It returns the derivative by each argument, as a tuple if there are
        several, and must be written like a stage.

    Raises
    ------
    CellError
        `function` or what is decorated is not a function, or a form is not callable or of an unknown backend.

    Examples
    --------
    >>> import math
    >>> from rnnkit.cells import derivative
    >>> @derivative(math.atan)
    ... def of_atan(x):
    ...     return 1 / (1 + x * x)
    """
    if not isinstance(function, (FunctionType, BuiltinFunctionType)):
        raise CellError(f"@derivative: function must be a function, got {function!r}")
    for backend, form in forms.items():
        if backend not in ("numpy", "torch", "jax") or not callable(form):
            expected = "be numpy, torch or jax, each a function of arrays"
            raise CellError(f"@derivative: forms must {expected}, got {backend}={form!r}")

    def declare(own):
        if not isinstance(own, FunctionType):
            raise CellError(f"@derivative: the derivative must be a function, got {own!r}")
        _GIVEN[function] = own
        _FORMS.update({(function, backend): form for backend, form in forms.items()})
        return own

    return declare


def given_for(function):
    """Return the derivative that a user gave for a function, or None."""
    return _GIVEN.get(function)


def given_form(function, backend):
    """Return the form for arrays of a backend that a user gave for a function, or None."""
    return _FORMS.get((function, backend))


def is_known(function):
    """Whether a call of this function is a primitive operation, which is not inlined."""
    return function in _OF_CALLS or function in _GIVEN


def parameters_of(function):
    """Return how many numbers a function with a derivative rule of ours takes; None for any other one."""
    return None if function in _GIVEN else _PARAMETERS.get(function, 1)


def known_as(name):
    """Return our name ("rnnkit.cells.tanh") of a function that another package calls `name`; None if unknown."""
    name = _OTHER_NAMES.get(name, name)
    found = next((one for one in _OF_CALLS if one.__name__ == name and one is not value), None)
    if found is None or found.__module__ == "builtins":
        return found and name
    return f"math.{name}" if found.__module__ == "math" else f"rnnkit.cells.{name}"


def _of_power(one, d):
    base, power = one.arguments
    if power.op == "const":
        p = power.arguments[0]
        rest = ONE if p == 1 else base if p == 2 else expression("**", base, const(p - 1))
        return [(base, product(d, product(const(p), rest)))]
    less = expression("**", base, expression("-", power, ONE))
    return [(base, product(d, product(power, less)))]


def _of_quotient(one, d):
    share = quotient(d, one.arguments[1])
    return [(one.arguments[0], share), (one.arguments[1], negative(product(share, one)))]


def _of_product(one, d):
    first, second = one.arguments
    return [(first, product(d, second)), (second, product(d, first))]


def _of_choice(one, d):
    condition, yes, no = one.arguments
    known = _known_by_value(one)
    return [(yes, choice(known or condition, d, ZERO)), (no, choice(known or condition, ZERO, d))]


def _known_by_value(one):
    """Return the condition of max(x, K), also written `x if x > K else K` or `K if x < K else x`, as a condition on its
    result, so that the gradient needs only the stored result. None for other choices."""
    condition, yes, no = one.arguments
    sides = condition.operands
    if condition.op in (">", ">=") and sides == [yes, no] and no.op == "const":
        return expression("not", expression("<=", one, no))  # of a NaN the derivative is that of x
    if condition.op in ("<", "<=") and sides == [no, yes] and yes.op == "const":
        return expression("<=", one, yes)
    return None


def _of_extreme(beyond, bound):
    """Return the rule of max or min. At a tie with a constant the derivative is 0; at a tie of two variables it goes to
    the first."""

    def rule(one, d):
        first, second = one.arguments
        for constant, other in ((first, second), (second, first)):
            if constant.op == "const":
                return [(other, choice(expression(bound, one, constant), ZERO, d))]
        is_second = expression(beyond, second, first)
        return [(first, choice(is_second, ZERO, d)), (second, choice(is_second, d, ZERO))]

    return rule


def _of_abs(one, d):
    x = one.arguments[0]
    above = choice(expression(">", x, ZERO), d, ZERO)
    return [(x, choice(expression("<", x, ZERO), negative(d), above))]


def _of_clip(one, d):
    x, low, high = one.arguments
    outside = expression("or", expression("<=", one, low), expression(">=", one, high))
    return [(x, choice(outside, ZERO, d))]


def _of_sum(one, d):
    return [(one.arguments[0], d), (one.arguments[1], d)]


def _of_difference(one, d):
    return [(one.arguments[0], d), (one.arguments[1], negative(d))]


def _minus_square(y):
    return expression("-", ONE, expression("*", y, y))


def _of_fma(one, d):
    first, second, added = one.arguments
    return [(first, product(d, second)), (second, product(d, first)), (added, d)]


def _by(slope_of):
    """Return the rule of a function of one number, given the expression of its derivative."""
    return lambda one, d: [(one.arguments[0], product(d, slope_of(one, one.arguments[0])))]


_OF_CALLS = {
    fma: _of_fma, clip: _of_clip, abs: _of_abs, max: _of_extreme(">", "<="), min: _of_extreme("<", ">="),
    sigmoid: _by(lambda y, x: expression("*", y, expression("-", ONE, y))),
    tanh: _by(lambda y, x: _minus_square(y)), math.tanh: _by(lambda y, x: _minus_square(y)),
    exp: _by(lambda y, x: y), math.exp: _by(lambda y, x: y),
    softplus: _by(lambda y, x: expression(sigmoid, x)),
    math.sqrt: _by(lambda y, x: quotient(const(0.5), y)),
    math.log: _by(lambda y, x: quotient(ONE, x)),
    math.log1p: _by(lambda y, x: quotient(ONE, expression("+", ONE, x))),
    math.expm1: _by(lambda y, x: expression("+", y, ONE)),
    math.sin: _by(lambda y, x: expression(math.cos, x)),
    math.cos: _by(lambda y, x: negative(expression(math.sin, x))),
    value: lambda one, d: [(one.arguments[1], product(d, expression(slope, one.arguments[0], one)))],
}  # fmt: skip
_PARAMETERS = {fma: 3, clip: 3, max: 2, min: 2, value: 2, slope: 2}  # of all others 1
_OTHER_NAMES = {"absolute": "abs", "fabs": "abs", "maximum": "max", "minimum": "min", "expit": "sigmoid"}
_OF_SIGNS = {
    "+": _of_sum, "-": _of_difference, "*": _of_product, "/": _of_quotient, "**": _of_power, "if": _of_choice,
    "neg": lambda one, d: [(one.arguments[0], negative(d))],
}  # fmt: skip


def gradients_of(one, d):
    """Return (operand, the gradient by it) for the operands of an expression with the gradient `d`. An expression that
    is not a number, for example a condition, has none."""
    rule = _OF_SIGNS.get(one.op) or _OF_CALLS.get(one.op)
    return rule(one, d) if rule else []
