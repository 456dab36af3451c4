"""Expressions of one unit's numbers: what the equations of a cell are read as, and what its gradient is made of.

Equal expressions are one object, so a common subexpression is computed once. What an equation says is kept operation by
operation; `product`, `total` and their like, of which gradients are made, simplify as a person would: no product with 0
or 1, a product that is added is fused, a common factor stands before its bracket. A choice with a zero goes to the
front: where a branch was not taken its derivative, which may be infinite or a NaN, is not multiplied by 0.
"""

from weakref import WeakValueDictionary

from .functions import fma, mean

COMPARISONS = "<", "<=", ">", ">=", "==", "!="


class Expression:
    """An operation and what it is applied to.

    The operation is a function, or the sign of one: an operator, "neg", "if" (of condition, value, other value),
    "const" (of a Python number), "field" and "flag" (of the name of a parameter, a flag's being a bool), or "read" and
    "gradient" (of a value in memory; the latter is that of the loss by it). `is_of_row` says whether all units of a row
    have the same number there, which is computed once then: it is made of means, scalars and parameters.
    """

    __slots__ = "__weakref__", "arguments", "is_of_row", "op"

    @property
    def operands(self):
        """The expressions that it is computed from."""
        return [one for one in self.arguments if isinstance(one, Expression)]

    @property
    def is_condition(self):
        """Whether it is true or false, and not a number."""
        if self.op == "const":
            return isinstance(self.arguments[0], bool)
        return self.op in (*COMPARISONS, "and", "or", "not", "flag")

    def is_const(self, number):
        """Whether it is this number, whatever the sign of a zero."""
        return self.op == "const" and not self.is_condition and self.arguments[0] == number


_KNOWN = WeakValueDictionary()


def expression(op, *arguments):
    """The expression of this operation and these arguments."""
    key = op, *((type(one), repr(one)) if op == "const" else one for one in arguments)  # 1 == 1.0 == True
    found = _KNOWN.get(key)
    if found is None:
        found = Expression()
        found.op, found.arguments = op, arguments
        found.is_of_row = _is_of_row(found)
        _KNOWN[key] = found
    return found


def _is_of_row(one):
    if one.op in ("read", "gradient"):
        return one.arguments[0].kind in ("mean", "scalar")
    return one.op is mean or all(part.is_of_row for part in one.operands)


def const(value):
    """The expression of a Python number."""
    return expression("const", value)


ZERO, ONE = const(0), const(1)


def in_order(outputs):
    """All that these expressions are made of, each behind what it is computed from."""
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


def rebuilt(outputs, replace):
    """These expressions, with `replace(one)` for each of their parts for which it is not None."""
    found = {}

    def build(one):
        if one not in found:
            other = replace(one)
            if other is None:
                parts = [build(part) if isinstance(part, Expression) else part for part in one.arguments]
                other = expression(one.op, *parts) if parts != list(one.arguments) else one
            found[one] = other
        return found[one]

    return [build(one) for one in outputs]


def choice(condition, value, other):
    """`value` where the condition holds, else `other`."""
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
    """one * other."""
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
    """one / other."""
    if one.is_const(0):
        return ZERO
    if one.op == "neg":
        return negative(quotient(one.arguments[0], other))
    if one.op == "if" and _has_zero(one):
        return _within(one, lambda part: quotient(part, other))
    if other.is_of_row and not one.is_of_row:  # divided once a row
        return product(one, expression("/", ONE, other))
    return expression("/", one, other)


def total(one, other):
    """one + other."""
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
    for sum_, added in ((one, other), (other, one)):
        if sum_.op is fma:
            first, second, rest = sum_.arguments
            return expression(fma, first, second, total(rest, added))
    if other.op == "neg":
        return expression("-", one, other.arguments[0])
    if one.op == "neg":
        return expression("-", other, one.arguments[0])
    return expression("+", one, other)


def _factored(one, other):
    """a*b + a*c as a*(b + c), with either sign; None unless they have a first factor in common."""
    (sign, first), (other_sign, second) = _signed(one), _signed(other)
    if first.op != "*" or second.op != "*" or first.arguments[0] is not second.arguments[0]:
        return None
    factor, own = first.arguments
    its = second.arguments[1]
    if sign == other_sign:
        bracket = product(factor, total(own, its))
        return negative(bracket) if sign else bracket
    plus, minus = (its, own) if sign else (own, its)
    return product(factor, total(plus, negative(minus)))


def _signed(one):
    return (True, one.arguments[0]) if one.op == "neg" else (False, one)


def _has_zero(one):
    return one.arguments[1].is_const(0) or one.arguments[2].is_const(0)


def _within(one, change):
    """A choice of which one side is zero, the other one changed."""
    condition, value, other = one.arguments
    return choice(condition, *(part if part.is_const(0) else change(part) for part in (value, other)))
