"""Parses the syntax tree of a stage into expressions, and inlines the functions that it calls."""

import ast
import inspect
import operator
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np

from .derivatives import is_known, known_as
from .expressions import choice, const, expression, negative
from .functions import mean, slope, value
from .rules import cell_error, describe_stage, parameter_types
from .source import node_of
from .uses import Unresolved, looked_up

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OF_CONSTS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_MAX_DEPTH = 32  # of nested calls: a recursive function has no expression
SELF = object()  # the cell, as an argument
_BY_HAND = "or write the stage's gradient under @gradient"


def read_stage(kind, stage, arguments, hints):
    """Return the expressions that a stage returns, given the expressions of its arguments.

    Adds to `hints` the variable name that an expression was first assigned to. Raises CellError.
    """
    fields = {name: "flag" if one is bool else "field" for name, one in parameter_types(kind).items()}
    reader = _Reader(kind, stage.function, fields, hints, 0)
    found = reader.run([SELF, *arguments])
    if len(found) != len(stage.writes):
        expected = f"return {len(stage.writes)} numbers ({', '.join(stage.writes)})"
        raise cell_error(kind.declaration, describe_stage(stage.function), expected, len(found))
    for name, one in zip(stage.writes, found, strict=True):
        if one.is_condition:
            raise reader.refused(reader.tree, f"a condition for {name}", "return `1 if ... else 0`")
    return found


def read_function(kind, function, arguments):
    """Return the list of expressions that a function of numbers returns."""
    return _Reader(kind, function, {}, {}, 0).run(arguments)


class _Reader:
    """Reader of one function."""

    def __init__(self, kind, function, fields, hints, depth):
        self.kind, self.function, self.fields, self.hints, self.depth = kind, function, fields, hints, depth
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

    def run(self, arguments):
        """Return the list of expressions that the function returns for these arguments."""
        names = [one.arg for one in (*self.tree.args.posonlyargs, *self.tree.args.args)]
        known = dict(zip(names, arguments, strict=True))
        if isinstance(self.tree, ast.Lambda):
            return _listed(self.read(self.tree.body, known))
        found = self.block(self.tree.body, known)
        if found is None:
            raise self.refused(self.tree, "a path without a return", "return on every path")
        return found

    # ------------------------------------------------------------------ statements

    def block(self, statements, known):
        """Return what these statements return, as a list, or None if they do not; they assign to `known`."""
        for number, one in enumerate(statements):
            if isinstance(one, ast.Return) and one.value is not None:
                return _listed(self.read(one.value, known))
            if isinstance(one, ast.If):
                rest = statements[number + 1 :]
                if any(isinstance(part, ast.Return) for part in ast.walk(one)):
                    return self.returning_if(one, rest, known)
                self.assigning_if(one, known)
            else:
                self.statement(one, known)
        return None

    def returning_if(self, one, rest, known):
        """Return what an `if` with a return in it, and the statements `rest` after it, return."""
        condition = self.condition(one.test, known)
        found = [self.block([*part, *rest], dict(known)) for part in (one.body, one.orelse)]
        if None in found:
            raise self.refused(one, "a path without a return", "return on every path")
        if len(found[0]) != len(found[1]):
            got = f"{len(found[0])} results on one path and {len(found[1])} on another"
            raise self.refused(one, got, "return the same number on every path")
        return [self.chosen(one, condition, *pair) for pair in zip(*found, strict=True)]

    def assigning_if(self, one, known):
        condition, yes, no = self.condition(one.test, known), dict(known), dict(known)
        self.block(one.body, yes)
        self.block(one.orelse, no)
        for name in dict.fromkeys((*yes, *no)):
            pair = yes.get(name), no.get(name)
            known[name] = pair[0] if pair[0] is pair[1] else self.chosen(one, condition, *pair)

    def statement(self, one, known):
        if isinstance(one, ast.Pass) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
            return
        if isinstance(one, ast.Assign):
            found = self.read(one.value, known)
            for target in one.targets:
                self.assign(target, found, known)
        elif isinstance(one, ast.AnnAssign) and one.value is not None:
            self.assign(one.target, self.read(one.value, known), known)
        elif isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name):
            self.assign(one.target, self.operation(one, one.op, self.name(one.target, known),
                                                   self.number(one.value, known)), known)
        elif isinstance(one, (ast.For, ast.While)):
            raise self.refused(one, "a loop", "unroll it")
        else:
            raise self.refused(one, f"a statement {type(one).__name__}", "assign names and return numbers")

    def assign(self, target, found, known):
        if isinstance(target, ast.Name):
            if isinstance(found, list):
                raise self.refused(target, "a tuple assigned to one name", "give each of its numbers a name")
            known[target.id] = found
            self.hints.setdefault(found, target.id)
            return
        if not isinstance(target, (ast.Tuple, ast.List)) or not isinstance(found, list):
            raise self.refused(target, "an assignment to something other than names", "assign each number to a name")
        if len(target.elts) != len(found):
            raise self.refused(target, f"{len(found)} numbers for {len(target.elts)} names", "give each number a name")
        for one, own in zip(target.elts, found, strict=True):
            self.assign(one, own, known)

    # ------------------------------------------------------------------ expressions

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
            left, right = self.number(node.left, known), self.number(node.right, known)
            return self.operation(node, node.op, left, right)
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
        if isinstance(yes, list) or isinstance(no, list) or yes.is_condition != no.is_condition:
            raise self.refused(node, "a conditional between a number and a condition", "use numbers for both")
        if yes.is_condition:
            if yes is no:
                return yes
            either = expression("and", condition, yes), expression("and", expression("not", condition), no)
            return expression("or", *either)
        return choice(condition, yes, no)

    def name(self, node, known):
        if node.id in known:
            found = known[node.id]
            if found is None:
                raise self.refused(node, "a name that only one branch assigns", "assign it in both")
            if found is SELF:
                raise self.refused(node, "the cell as a number", "use one of its parameters")
            return found
        return self.constant(node, self.looked_up(node))

    def attribute(self, node, known):
        if isinstance(node.value, ast.Name) and node.value.id == "self" and known.get("self") is SELF:
            if node.attr not in self.fields:
                raise self.refused(node, f"{node.attr}, which is not a parameter of the cell", "declare it as a field")
            return expression(self.fields[node.attr], node.attr)
        return self.constant(node, self.looked_up(node))

    def looked_up(self, node):
        """Return the value of a name from outside the function."""
        try:
            if isinstance(node, ast.Name):
                return looked_up(self.function, node.id)
            if isinstance(node, ast.Attribute):
                owner = self.looked_up(node.value)
                if isinstance(owner, (ModuleType, type)):
                    return getattr(owner, node.attr)
        except (NameError, AttributeError) as error:
            raise self.refused(node, str(error), "use a name that exists") from None
        raise self.refused(node, "an attribute", "take parameters from self, constants from modules")

    def constant(self, node, found):
        if isinstance(found, np.generic):
            found = found.item()
        if not isinstance(found, (bool, int, float)):
            raise self.refused(node, f"a {type(found).__name__}", "use only numbers as constants")
        return const(found)

    def operation(self, node, sign, left, right):
        if type(sign) not in _OPERATORS:
            raise self.refused(node, f"the operator {type(sign).__name__}", "use + - * / or **")
        sign = _OPERATORS[type(sign)]
        if sign == "**" and right.op not in ("const", "field"):
            raise self.refused(node, "a power with a variable exponent", "write exp(y * math.log(x))")
        return self.computed(node, sign, left, right)

    def computed(self, node, sign, left, right):
        """Return the expression of an operation; if both operands are constants, its result."""
        if left.op == right.op == "const":
            try:
                return const(_OF_CONSTS[sign](left.arguments[0], right.arguments[0]))
            except ArithmeticError as error:
                raise self.refused(node, str(error), "write the number itself") from None
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
        function = self.looked_up(node.func)
        function = getattr(function, "py_func", function)  # of a function that Numba compiles
        if node.keywords or any(isinstance(one, ast.Starred) for one in node.args):
            arguments = self.bound(node, function, known)
        elif function in (value, slope):
            return self.of_activation(node, function, known)
        else:
            arguments = [self.number(one, known) for one in node.args]
        if function in (min, max) and len(arguments) > 1:
            found, *others = arguments
            for other in others:
                found = expression(function, found, other)
            return found
        if function is mean and len(arguments) == 1:
            return self.averaged(node, *arguments)
        if is_known(function):
            return expression(function, *arguments)
        if not isinstance(function, FunctionType):
            raise self.unknown(node, function)
        if self.depth == _MAX_DEPTH:
            raise self.refused(node, "a function that calls itself", "unroll it")
        found = _Reader(self.kind, function, {}, {}, self.depth + 1).run(self.filled(node, function, arguments))
        return found if len(found) > 1 else found[0]

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

    def bound(self, node, function, known):
        try:
            given = {one.arg: self.number(one.value, known) for one in node.keywords}
            return list(inspect.signature(function).bind(*(self.number(one, known) for one in node.args), **given).args)
        except (TypeError, ValueError) as error:
            raise self.refused(node, str(error), "pass arguments that match its signature") from None

    def filled(self, node, function, arguments):
        """Return the arguments, with defaults for those that are not given."""
        try:
            given = inspect.signature(function).bind(*arguments)
        except TypeError as error:
            raise self.refused(node, str(error), "pass arguments that match its signature") from None
        given.apply_defaults()
        numbers = (int, float, bool)
        return [const(one) if isinstance(one, numbers) else one for one in given.args]

    def of_activation(self, node, function, known):
        if len(node.args) != 2:
            raise self.refused(node, f"{len(node.args)} arguments", "pass an activation and a number")
        activation = self.read(node.args[0], known)
        return expression(function, activation, self.number(node.args[1], known))


def _listed(found):
    return found if isinstance(found, list) else [found]
