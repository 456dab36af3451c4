"""Writes the stages of a cell, read as expressions of one unit, as Python code of arrays."""

from __future__ import annotations

import math
from numbers import Real
from types import SimpleNamespace
from typing import Any

from rnnkit.equations.namespaces import CHOOSING, namespace
from rnnkit.errors import message
from rnnkit_kernels.cells.derivatives import given_form
from rnnkit_kernels.cells.expressions import const, expression, in_order, rebuilt
from rnnkit_kernels.cells.functions import slope, value
from rnnkit_kernels.cells.loops import Value
from rnnkit_kernels.cells.reading import read_activation, read_stage
from rnnkit_kernels.cells.writing import Text

LIKE = "h_prev"  # has the dtype of the network
_CONDITIONS = {"and": "&", "or": "|"}


class CellText(Text):
    """Writer of the stages of one cell, with its parameters as numbers and its activations written out."""

    def __init__(self, cell: Any) -> None:
        self.own = cell
        hints: dict[Any, str] = {}
        super().__init__(SimpleNamespace(hints=hints), lambda one: one.arguments[0].name, {})

    def expressions(self, stage: Any) -> list[Any]:
        """Return what a stage writes, as expressions of what it reads."""
        given = [expression("read", Value(name, "slot")) for name in stage.reads]
        found = read_stage(type(self.own), stage, given, self.cell.hints)
        return rebuilt(found, self._as_number, self.written_out)

    def _as_number(self, one: Any) -> Any:
        """Replace a parameter by its number."""
        if one.op == "flag":
            return const(getattr(self.own, one.arguments[0]))
        if one.op == "field":
            found = getattr(self.own, one.arguments[0])
            return _number(found) if isinstance(found, Real) else None
        return None

    def written_out(self, one: Any) -> Any:
        """Return the equations of `value(activation, x)` or `slope(activation, y)`; None for any other expression."""
        if one.op not in (value, slope):
            return None
        activation = getattr(self.own, one.arguments[0].arguments[0])
        x = expression("read", Value("x", "slot"))
        written = read_activation(type(self.own), activation, x, one.op.__name__)
        numbers = {name: _number(one) for name, one in activation._asdict().items()}
        written = rebuilt(written, lambda part: numbers[part.arguments[0]] if part.op == "field" else None)
        (found,) = rebuilt(written, lambda part: one.arguments[1] if part is x else None)
        return found


class Printer(CellText):
    """Writer of the stages of one cell for one backend."""

    def __init__(self, function: str, cell: Any, backend: str) -> None:
        super().__init__(cell)
        self.backend, self.function = backend, function
        self.space = namespace(function, backend)
        self.globals: dict[str, Any] = {"where": self.space.where, "inf": math.inf, "nan": math.nan}

    def stage(self, stage: Any, taken: set[str]) -> list[str]:
        """Return the lines that assign what a stage writes. `taken` are names of others."""
        found = self.expressions(stage)
        order = in_order(found)
        self.local, self.functions = {}, dict.fromkeys([*taken, *stage.writes])
        *lines, last = self.lines(found, order)
        return [*lines, f"{', '.join(stage.writes)} = {last.removeprefix('return ')}"]

    def plain(self, one: Any, own: int) -> list[Any]:
        """Return the parts of the text of an expression, as `Text.plain`."""
        if one.op == "if":
            condition, yes, no = one.arguments
            is_known = known(condition)
            if is_known is not None:
                return ["(", (yes if is_known else no, 0), ")"]
            return ["where(", (condition, 0), ", ", (yes, 0), ", ", (no, 0), f", {LIKE})"]
        if one.op == "not":
            return ["~(", (one.arguments[0], 0), ")"]
        if one.op in _CONDITIONS:
            first, second = one.arguments
            return ["((", (first, 0), f") {_CONDITIONS[one.op]} (", (second, 0), "))"]
        if not isinstance(one.op, str):
            commas = [text for part in one.arguments for text in (", ", (part, 0))]
            like = [f", {LIKE}"] if one.op in CHOOSING else []
            return [f"{self._called(one.op)}(", *commas[1:], *like, ")"]
        return super().plain(one, own)

    def _called(self, op: Any) -> str:
        """Return the name of a function, which becomes a global of the code."""
        form = CHOOSING[op](self.space.where) if op in CHOOSING else self.space.table.get(op)
        if form is None:
            form = given_form(op, self.backend)
        name = getattr(op, "__name__", "function")
        if form is None:
            where = f"cell {type(self.own).__qualname__}: {name}"
            cure = f"declare it: @derivative({name}, {self.backend}=...)"
            raise TypeError(message(self.function, where, f"have a form for {self.backend}", "none", cure))
        while self.globals.setdefault(name, form) is not form:
            name += "_"
        return name


def _number(value: Any) -> Any:
    """Return a parameter as a constant: a Python number, which does not change the dtype of an array."""
    return const(value if isinstance(value, int) else float(value))


def known(condition: Any) -> bool | None:
    """Return whether a condition of constants holds; None if it is not one of constants."""
    op, arguments = condition.op, condition.arguments
    if op == "const":
        return bool(arguments[0])
    if op == "not":
        inner = known(arguments[0])
        return None if inner is None else not inner
    if op in ("and", "or"):
        both = [known(one) for one in arguments]
        decisive = op == "or"
        return decisive if decisive in both else None if None in both else not decisive
    if all(one.op == "const" for one in condition.operands):
        left, right = (one.arguments[0] for one in arguments)
        return {
            "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right, "==": left == right,
            "!=": left != right,
        }[op]  # fmt: skip
    return None
