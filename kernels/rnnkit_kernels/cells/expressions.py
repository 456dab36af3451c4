"""Scalar expressions of one unit: parsed equations, and the gradients derived from them.

Equal expressions are one object (hash-consing), so a common subexpression is computed once. Equations are not
simplified. Gradients are built by `product`, `total` and the like, which do simplify: they drop factors 0 and 1, fuse
an added product, and factor out common factors. They also hoist a conditional with a zero branch, so that the
derivative of a branch that is not taken, which may be infinite or NaN, is not multiplied by 0.
"""

from weakref import WeakValueDictionary

from .functions import fma, mean

COMPARISONS = "<", "<=", ">", ">=", "==", "!="


class Expression:
    """An operation and its arguments.

    The operation `op` is a function or a string: an operator, "neg", "if" (condition, value, other value), "const" (a
    Python number), "field" or "flag" (the name of a parameter; a flag is a bool), "read" (a value in memory) or
    "gradient" (the loss gradient by a value in memory). `is_uniform`: the result is equal for all units of a row and
    computed once a row, because it depends only on means, scalars and parameters.
    """

    __slots__ = "__weakref__", "arguments", "is_uniform", "op"

    @property
    def operands(self):
        """The arguments that are expressions."""
        return [one for one in self.arguments if isinstance(one, Expression)]

    @property
    def is_condition(self):
        """Whether it is a condition (true or false) rather than a number."""
        if self.op == "const":
            return isinstance(self.arguments[0], bool)
        return self.op in (*COMPARISONS, "and", "or", "not", "flag")

    def is_const(self, number):
        """Whether it is this constant; 0 and -0 are equal."""
        return self.op == "const" and not self.is_condition and self.arguments[0] == number


_KNOWN = WeakValueDictionary()


def expression(op, *arguments):
    """Return the one expression with this operation and these arguments."""
    key = op, *((type(one), repr(one)) if op == "const" else one for one in arguments)  # 1 == 1.0 == True
    found = _KNOWN.get(key)
    if found is None:
        found = Expression()
        found.op, found.arguments = op, arguments
        found.is_uniform = _is_uniform(found)
        _KNOWN[key] = found
    return found


def _is_uniform(one):
    if one.op in ("read", "gradient"):
        return one.arguments[0].kind in ("mean", "scalar")
    return one.op is mean or all(part.is_uniform for part in one.operands)


def const(value):
    """Return the expression of a Python number."""
    return expression("const", value)


ZERO, ONE = const(0), const(1)


def in_order(outputs):
    """Return all subexpressions of these expressions, each after its operands."""
    found = {}  # as an ordered set
    waiting = list(reversed(outputs))
    while waiting:
        one = waiting[-1]
        missing = [operand for operand in one.operands if operand not in found] if one not in found else []
        if missing:
            waiting.extend(reversed(missing))
        else:
            found[waiting.pop()] = None
    return list(found)


def rebuilt(outputs, replace, expand=lambda one: None):
    """Return these expressions with each part replaced by `replace(part)`, unless that is None; else by `expand(part)`
    and its parts in turn, unless that is None."""
    found, waiting = {}, list(reversed(outputs))
    while waiting:
        one = waiting[-1]
        other = found.get(one) or replace(one)
        if other is None:
            inner = expand(one)
            parts = one.operands if inner is None else [inner]
            missing = [part for part in parts if part not in found]
            if missing:
                waiting.extend(reversed(missing))
                continue
            other = found[inner] if inner is not None else one
            if any(found[part] is not part for part in parts) and inner is None:
                made = (found[part] if isinstance(part, Expression) else part for part in one.arguments)
                other = expression(one.op, *made)
        found[waiting.pop()] = other
    return [found[one] for one in outputs]


def choice(condition, value, other):
    """Return `value` if the condition holds, else `other`."""
    if condition.op == "const":
        return value if condition.arguments[0] else other
    return value if value is other else expression("if", condition, value, other)


def negative(one):
    """-one."""
    if one.op == "const":
        return const(-one.arguments[0])
    if one.op == "if" and _has_zero(one):
        return _within(one, negative)
    return one.arguments[0] if one.op == "neg" else expression("neg", one)


def product(one, other):
    """Return one * other, simplified."""
    for number, factor in ((one, other), (other, one)):
        if number.is_const(0):
            return ZERO
        if number.is_const(1):
            return factor
    if one.op == "neg" and other.op == "neg":
        return product(one.arguments[0], other.arguments[0])
    for number, factor in ((one, other), (other, one)):
        if number.op == "neg" and factor.op != "const":
            return negative(product(number.arguments[0], factor))
    if one.op == "if" and _has_zero(one):
        return _within(one, lambda part: product(part, other))
    if other.op == "if" and _has_zero(other):
        return _within(other, lambda part: product(one, part))
    return expression("*", one, other)


def quotient(one, other):
    """Return one / other, simplified."""
    if one.is_const(0):
        return ZERO
    if one.op == "neg":
        return negative(quotient(one.arguments[0], other))
    if one.op == "if" and _has_zero(one):
        return _within(one, lambda part: quotient(part, other))
    if other.is_uniform and not one.is_uniform:  # divided once a row
        return product(one, expression("/", ONE, other))
    return expression("/", one, other)


def total(one, other):
    """Return one + other, simplified."""
    around = []  # of fused products, from the outside
    while (found := _simple_total(one, other)) is None:
        sum_, added = (one, other) if one.op is fma else (other, one)
        *factors, rest = sum_.arguments
        around.append(factors)
        one, other = rest, added
    for first, second in reversed(around):
        found = expression(fma, first, second, found)
    return found


def _simple_total(one, other):
    """Return one + other, simplified; None if it belongs within a fused product."""
    if one.is_const(0):
        return other
    if other.is_const(0):
        return one
    if one.op == other.op == "if" and one.arguments[0] is other.arguments[0] and (_has_zero(one) or _has_zero(other)):
        condition, value, otherwise = one.arguments
        return choice(condition, total(value, other.arguments[1]), total(otherwise, other.arguments[2]))
    if (shared := _factored(one, other)) is not None:
        return shared
    for added, rest in ((other, one), (one, other)):
        minus = added.op == "neg"
        inner = added.arguments[0] if minus else added
        if inner.op == "*":
            first, second = inner.arguments
            return expression(fma, negative(first) if minus else first, second, rest)
    if fma in (one.op, other.op):
        return None
    if other.op == "neg":
        return expression("-", one, other.arguments[0])
    if one.op == "neg":
        return expression("-", other, one.arguments[0])
    return expression("+", one, other)


def _factored(one, other):
    """Return a*b + a*c as a*(b + c), with either sign; None unless the first factors are the same."""
    (sign, first), (other_sign, second) = _signed(one), _signed(other)
    if first.op != "*" or second.op != "*" or first.arguments[0] is not second.arguments[0]:
        return None
    factor, b = first.arguments
    c = second.arguments[1]
    if sign == other_sign:
        bracket = product(factor, total(b, c))
        return negative(bracket) if sign else bracket
    plus, minus = (c, b) if sign else (b, c)
    return product(factor, total(plus, negative(minus)))


def _signed(one):
    return (True, one.arguments[0]) if one.op == "neg" else (False, one)


def _has_zero(one):
    return one.arguments[1].is_const(0) or one.arguments[2].is_const(0)


def _within(one, change):
    """Return a conditional with a zero branch, with `change` applied to the other branch."""
    condition, value, other = one.arguments
    return choice(condition, *(part if part.is_const(0) else change(part) for part in (value, other)))
