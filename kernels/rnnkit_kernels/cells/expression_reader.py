"""Reads Python expressions, as syntax trees, as expressions of numbers; calls of helper functions are inlined."""

import ast
import math
import operator
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np

from .calls import Outside, bound, by_position, starred
from .derivatives import is_known, known_as, parameters_of
from .expressions import Expression, choice, const, expression, negative
from .functions import mean, slope
from .rules import cell_error, describe_stage
from .source import node_of
from .uses import Unresolved, looked_up

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OF_CONSTS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_LARGEST = sys.float_info.max
_MAX_DEPTH = 32  # of nested calls: a recursive function has no expression
SELF = object()  # the cell, as an argument
_BY_HAND = "or write the stage's gradient under @gradient"


class ExpressionReader:
    """Reader of the expressions in one function; a subclass reads its statements. `read_calls` has the results of calls
    of helper functions that are read already."""

    def __init__(self, kind, function, fields, hints, read_calls, depth):
        self.kind, self.function, self.fields, self.hints, self.depth = kind, function, fields, hints, depth
        self.read_calls, self.locals = read_calls, {*function.__code__.co_varnames, *function.__code__.co_cellvars}
        try:
            self.tree = node_of(function)
        except Unresolved as error:
            expected, cure = "have readable source, to derive its gradient from", _BY_HAND.removeprefix("or ")
            where, got = describe_stage(function), f"a function that {error}"
            raise cell_error(kind.declaration, where, expected, got, cure) from None

    def refused(self, node, got, cure):
        """Return the error that a gradient cannot be derived from this Python."""
        expected = "be equations that a gradient can be derived from"
        text = ast.unparse(node).splitlines()[0]
        where = describe_stage(self.function, node.lineno)
        return cell_error(self.kind.declaration, where, expected, f"{got} (`{text}`)", f"{cure}, {_BY_HAND}")

    def read(self, node, known):
        """Return an expression, or for a tuple a list of expressions."""
        if isinstance(node, ast.Tuple):
            return [self.number(one, known) for one in node.elts]
        if isinstance(node, ast.IfExp):
            condition = self.condition(node.test, known)
            both = [self.read(one, known) for one in (node.body, node.orelse)]
            if isinstance(both[0], list) and isinstance(both[1], list) and len(both[0]) == len(both[1]):
                return [self.chosen(node, condition, *pair) for pair in zip(*both, strict=True)]
            if isinstance(both[0], list) or isinstance(both[1], list):
                got, cure = "a conditional between different numbers of values", "write one for each number"
                raise self.refused(node, got, cure)
            return self.chosen(node, condition, *both)
        if isinstance(node, ast.Call):
            return self.call(node, known)
        return self.scalar(node, known)

    def scalar(self, node, known):
        if isinstance(node, ast.Name):
            return self.name(node, known)
        if isinstance(node, ast.Constant):
            return self.constant(node, node.value)
        if isinstance(node, ast.Attribute):
            return self.attribute(node, known)
        if isinstance(node, ast.BinOp):
            chain = []  # a long sum is a deep tree
            while isinstance(node, ast.BinOp):
                chain.append(node)
                node = node.left
            found = self.number(node, known)
            for one in reversed(chain):
                found = self.operation(one, one.op, found, self.number(one.right, known))
            return found
        if isinstance(node, ast.UnaryOp):
            return self.unary(node, known)
        if isinstance(node, ast.Compare):
            return self.comparison(node, known)
        if isinstance(node, ast.BoolOp):
            sign = "and" if isinstance(node.op, ast.And) else "or"
            found, *others = (self.condition(one, known) for one in node.values)
            for other in others:
                found = expression(sign, found, other)
            return found
        raise self.refused(node, f"an expression {type(node).__name__}", "use numbers and functions of numbers")

    def number(self, node, known):
        found = self.read(node, known)
        if isinstance(found, list):
            raise self.refused(node, "a tuple within an equation", "give each of its numbers a name")
        if found.is_condition:
            raise self.refused(node, "a condition as a number", "write `1 if ... else 0`")
        return found

    def condition(self, node, known):
        found = self.read(node, known)
        if isinstance(found, list) or not found.is_condition:
            raise self.refused(node, "a number as a condition", "write a comparison, for example x != 0")
        return found

    def chosen(self, node, condition, yes, no):
        if yes is None or no is None:
            return None
        if not (isinstance(yes, Expression) and isinstance(no, Expression)) or yes.is_condition != no.is_condition:
            raise self.refused(node, "a conditional between a number and something else", "use numbers for both")
        if yes.is_condition:
            if yes is no:
                return yes
            either = expression("and", condition, yes), expression("and", expression("not", condition), no)
            return expression("or", *either)
        return choice(condition, yes, no)

    def name(self, node, known):
        found = self.local(node, known) if node.id in self.locals else Outside(self.looked_up(node, known))
        if found is SELF:
            raise self.refused(node, "the cell as a number", "use one of its parameters")
        return self.constant(node, found.value) if isinstance(found, Outside) else found

    def local(self, node, known):
        """Return what a name of the function refers to."""
        found = known.get(node.id)
        if found is None:
            got = "a name that only one branch assigns" if node.id in known else "a name that is not assigned before"
            raise self.refused(node, got, "assign it in both" if node.id in known else "assign it first")
        return found

    def attribute(self, node, known):
        if isinstance(node.value, ast.Name) and node.value.id in self.locals and known.get(node.value.id) is SELF:
            if node.attr not in self.fields:
                raise self.refused(node, f"{node.attr}, which is not a parameter of the cell", "declare it as a field")
            return expression(self.fields[node.attr], node.attr)
        return self.constant(node, self.looked_up(node, known))

    def looked_up(self, node, known):
        """Return the value of a name from outside the function: a global, or a default."""
        try:
            if isinstance(node, ast.Name):
                if node.id not in self.locals:
                    return looked_up(self.function, node.id)
                if isinstance(found := self.local(node, known), Outside):
                    return found.value
                raise self.refused(node, "a number as a function or a module", "give one of the two another name")
            if isinstance(node, ast.Attribute):
                owner = self.looked_up(node.value, known)
                if isinstance(owner, (ModuleType, type)):
                    return getattr(owner, node.attr)
        except (NameError, AttributeError) as error:
            raise self.refused(node, str(error), "use a name that exists") from None
        raise self.refused(node, "an attribute", "take parameters from self, constants from modules")

    def constant(self, node, found):
        number = as_number(Outside(found))
        if isinstance(number, Outside):
            got = "an int beyond float64" if isinstance(found, int) else f"a {type(found).__name__}"
            raise self.refused(node, got, "use only numbers as constants")
        return number

    def operation(self, node, sign, left, right):
        if type(sign) not in _OPERATORS:
            raise self.refused(node, f"the operator {type(sign).__name__}", "use + - * / or **")
        sign = _OPERATORS[type(sign)]
        if sign == "**" and not _is_of_parameters(right):
            raise self.refused(node, "a power with a variable exponent", "write exp(y * math.log(x))")
        return self.computed(node, sign, left, right)

    def computed(self, node, sign, left, right):
        """Return the expression of an operation; if both operands are constants, its result."""
        if left.op == right.op == "const":
            try:
                found = _OF_CONSTS[sign](left.arguments[0], right.arguments[0])
            except ArithmeticError as error:
                raise self.refused(node, str(error), "write the number itself") from None
            return self.constant(node, found)
        return expression(sign, left, right)

    def unary(self, node, known):
        if isinstance(node.op, ast.Not):
            found = self.condition(node.operand, known)
            return const(not found.arguments[0]) if found.op == "const" else expression("not", found)
        found = self.number(node.operand, known)
        if isinstance(node.op, ast.UAdd):
            return found
        if not isinstance(node.op, ast.USub):
            raise self.refused(node, "a bitwise operation", "use - or not")
        return negative(found) if found.op == "const" else expression("neg", found)

    def comparison(self, node, known):
        sides = [self.number(one, known) for one in (node.left, *node.comparators)]
        found = None
        for sign, left, right in zip(node.ops, sides, sides[1:], strict=False):
            if type(sign) not in _COMPARISONS:
                raise self.refused(node, f"the comparison {type(sign).__name__}", "use < <= > >= == or !=")
            own = self.computed(node, _COMPARISONS[type(sign)], left, right)
            found = own if found is None else expression("and", found, own)
        return found

    def call(self, node, known):
        function = self.looked_up(node.func, known)
        function = getattr(function, "py_func", function)  # of a function that Numba compiles
        if not isinstance(function, (FunctionType, BuiltinFunctionType)):
            raise self.unknown(node, function)
        for one in (*node.args, *node.keywords):
            if isinstance(one, ast.Starred) or getattr(one, "arg", "") is None:
                raise self.refused(node, "an argument with a star", "pass each argument by itself")
        given = [self.argument(one, known) for one in node.args]
        named = {one.arg: self.argument(one.value, known) for one in node.keywords}
        if function in (mean, slope) or is_known(function):
            return self.primitive(node, function, given, named)
        if not isinstance(function, FunctionType):
            raise self.unknown(node, function)
        return self.inlined(node, function, given, named)

    def argument(self, node, known):
        found = self.read(node, known)
        if isinstance(found, list):
            raise self.refused(node, "a tuple within an equation", "give each of its numbers a name")
        return found

    def inlined(self, node, function, given, named):
        """Return what a helper function returns: an expression, or a list of several."""
        key = function, *given, *named.items()
        if key not in self.read_calls:
            if self.depth == _MAX_DEPTH:
                raise self.refused(node, "a function that calls itself", "unroll it")
            reader = type(self)(self.kind, function, {}, {}, self.read_calls, self.depth + 1)
            self.read_calls[key] = reader.run(self.bound(node, function, given, named))
        found = self.read_calls[key]
        return found if len(found) > 1 else found[0]

    def primitive(self, node, function, given, named):
        """Return the expression of a call of a function whose derivative is known."""
        if named or isinstance(function, FunctionType):
            if isinstance(function, FunctionType) and (starred(function) or not by_position(function)):
                raise self.refused(node, "parameters * or after *", "give a function with a derivative plain ones")
            found = self.bound(node, function, given, named).values()
            given = [self.constant(node, one.value) if isinstance(one, Outside) else one for one in found]
        if any(one.is_condition for one in given):
            raise self.refused(node, "a condition as a number", "write `1 if ... else 0`")
        if function in (min, max) and len(given) > 1:
            found, *others = given
            for other in others:
                found = expression(function, found, other)
            return found
        count = parameters_of(function)
        if count not in (None, len(given)):
            raise self.refused(node, f"{len(given)} arguments", f"pass {count}")
        return self.averaged(node, *given) if function is mean else expression(function, *given)

    def averaged(self, node, terms):
        """Return the expression of a mean over the units of the row."""
        made = terms.arguments[0].expression if terms.op == "read" else None
        if terms.is_uniform or (made is not None and made.is_uniform):
            raise self.refused(node, "a mean of a number that is the same for all units of a row", "use the number")
        return expression(mean, terms)

    def unknown(self, node, function):
        """Return the error that the derivative of a function is not known."""
        name = getattr(function, "__name__", repr(function))
        cure = "use functions of rnnkit.cells and math"
        if (twin := known_as(name)) is not None:
            cure = f"use {twin}"
        elif isinstance(function, BuiltinFunctionType):
            cure = f"use functions of rnnkit.cells, or give its derivative under @derivative({name})"
        return self.refused(node, f"the function {name}, whose derivative is not known", cure)

    def bound(self, node, function, given, named):
        try:
            return bound(function, given, named)
        except (TypeError, ValueError) as error:
            raise self.refused(node, str(error), "pass arguments that match its signature") from None


def _is_of_parameters(one):
    """Whether an expression depends only on constants and parameters of the cell, as `self.power - 1`."""
    return one.op in ("const", "field") or (bool(one.operands) and all(map(_is_of_parameters, one.operands)))


def as_number(one):
    """Return an expression for a number from outside the equations, any other argument as it is."""
    found = one.value if isinstance(one, Outside) else None
    found = found.item() if isinstance(found, np.generic) else found
    kind = next((kind for kind in (bool, int, float) if isinstance(found, kind)), None)
    if kind is None or _LARGEST < abs(found) < math.inf:
        return one
    return const(kind(found))  # a number may be of a subclass, as those of an IntEnum
