"""Reads the functions of a cell, its stages and the functions that they call, as expressions: their statements.

What a helper function, a default, a keyword, a constant or a conditional means is what Python means by it.
"""

import ast
from typing import Any, NamedTuple

from .calls import bound, starred
from .expression_reader import SELF, ExpressionReader, as_number
from .rules import CellError, cell_error, describe_stage, parameter_types


def read_stage(kind, stage, arguments, hints):
    """Return the expressions that a stage returns, given the expressions of its arguments.

    Adds to `hints` the variable name that an expression was first assigned to. Raises CellError.
    """
    fields = {name: "flag" if one is bool else "field" for name, one in parameter_types(kind).items()}
    reader = _Reader(kind, stage.function, fields, hints, {}, 0)
    try:
        found = reader.run(dict(zip(("self", *stage.reads), (SELF, *arguments), strict=True)))
    except RecursionError:
        where, expected = describe_stage(stage.function), "be equations that a gradient can be derived from"
        cure = "give parts of them names, or write `if` after `if` instead of `elif`"
        raise cell_error(kind.declaration, where, expected, "ones that are nested too deeply", cure) from None
    if len(found) != len(stage.writes):
        expected = f"return {len(stage.writes)} numbers ({', '.join(stage.writes)})"
        raise cell_error(kind.declaration, describe_stage(stage.function), expected, len(found))
    for name, one in zip(stage.writes, found, strict=True):
        if one.is_condition:
            raise reader.refused(reader.tree, f"a condition for {name}", "return `1 if ... else 0`")
    return found


def read_function(kind, function, arguments):
    """Return the list of expressions that a function of numbers returns. Raises CellError."""
    reader = _Reader(kind, function, {}, {}, {}, 0)
    try:
        return reader.run(bound(function, arguments, {}))
    except TypeError as error:
        if isinstance(error, CellError):
            raise
        raise reader.refused(reader.tree, str(error), "take the arguments of the function itself") from None


def read_activation(kind, activation, x, method="value"):
    """Return the expressions of an activation's value at x, or of its slope, with its parameters as fields. Raises
    CellError."""
    function = getattr(type(activation), method)
    own, argument = function.__code__.co_varnames[:2]
    reader = _Reader(kind, function, dict.fromkeys(activation._fields, "field"), {}, {}, 0)
    return reader.run({own: SELF, argument: x})


class _Paths(NamedTuple):
    """What an `if` returns: lists of expressions, None for a path that goes on after it, or further paths."""

    node: Any
    condition: Any
    yes: Any
    no: Any


class _Reader(ExpressionReader):
    """Reader of one function."""

    def run(self, known):
        """Return the list of expressions that the function returns, given its arguments by name."""
        if own := starred(self.function):
            raise self.refused(self.tree, f"the parameter {own[0]}", "name each parameter")
        known = {name: as_number(one) for name, one in known.items()}
        if isinstance(self.tree, ast.Lambda):
            return _listed(self.read(self.tree.body, known))
        found = self.block(self.tree.body, known)
        if not isinstance(found, list):
            raise self.refused(self.tree, "a path without a return", "return on every path")
        return found

    def block(self, statements, known):
        """Return what these statements return: a list of expressions, `_Paths`, or None if all paths go on after them.
        They assign to `known`."""
        earlier, found = [], None  # pairs of paths, some of which go on
        for one in statements:
            if isinstance(one, ast.Return) and one.value is not None:
                found = _listed(self.read(one.value, known))
                break
            if not isinstance(one, ast.If):
                self.statement(one, known)
                continue
            condition, sides = self.condition(one.test, known), (dict(known), dict(known))
            pair = [self.block(part, side) for part, side in zip((one.body, one.orelse), sides, strict=True)]
            paths = _Paths(one, condition, *pair)
            open_sides = [side for side, own in zip(sides, pair, strict=True) if not isinstance(own, list)]
            if pair != [None, None]:
                earlier.append(paths)
            if not open_sides:
                break
            self.merge(one, condition, open_sides, known)
        for paths in reversed(earlier):
            found = self.continued(paths, found, {})
        return found

    def merge(self, node, condition, sides, known):
        """Let `known` have what the names refer to after an `if`: the sides that go on are one of its two, or both."""
        for name in dict.fromkeys(name for side in sides for name in side):
            first, last = sides[0].get(name), sides[-1].get(name)
            known[name] = first if first is last else self.chosen(node, condition, first, last)

    def continued(self, found, rest, done):
        """Return what a block returned, with `rest`, what follows, on the paths that go on; `done` is by identity, as
        several paths may share what follows them."""
        if not isinstance(found, _Paths):
            return rest if found is None else found
        if id(found) not in done:
            yes, no = (self.continued(one, rest, done) for one in (found.yes, found.no))
            done[id(found)] = self.joined(found._replace(yes=yes, no=no)), found  # which keeps the identity
        return done[id(found)][0]

    def joined(self, paths):
        """Return paths as one list if both have returned."""
        node, condition, *both = paths
        if not all(isinstance(one, list) for one in both):
            return paths
        if len(both[0]) != len(both[1]):
            got = f"{len(both[0])} results on one path and {len(both[1])} on another"
            raise self.refused(node, got, "return the same number on every path")
        return [self.chosen(node, condition, *pair) for pair in zip(*both, strict=True)]

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
            self.assign(
                one.target,
                self.operation(one, one.op, self.name(one.target, known), self.number(one.value, known)),
                known,
            )
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


def _listed(found):
    return found if isinstance(found, list) else [found]
