"""Writes the equations of a cell as C: one loop over the units for each stage."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from rnnkit.equations.printer import CellText, known
from rnnkit.errors import message
from rnnkit_kernels.cells.activations import softplus
from rnnkit_kernels.cells.expressions import in_order, rebuilt
from rnnkit_kernels.cells.functions import clip, exp, fma, sigmoid, tanh
from rnnkit_kernels.cells.reading import read_function

FUNCTIONS = {
    sigmoid: "rk_sigmoid", tanh: "rk_tanh", math.tanh: "rk_tanh", exp: "rk_exp", math.exp: "rk_exp", fma: "RK_FMA",
    clip: "rk_clip", abs: "RK_ABS", math.sqrt: "RK_SQRT", min: "rk_min", max: "rk_max",
}  # fmt: skip
"""What equations call, and its name in C (`functions`)."""
KEYWORDS = set(
    "auto break case char const continue default do double else enum extern float for goto if inline int long real "
    "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "x h s u".split()
)
"""What values of a cell are not called: words of C, and what a layer calls its own."""
_CONDITIONS = {"and": "&&", "or": "||"}
_POWERS = 1, 2, 3, 4


def literal(value: Any, real: Any) -> str:
    """Return a number of a dtype as C: the shortest decimal that rounds to it."""
    value = real(value)
    if not np.isfinite(value):
        return "RK_NAN" if np.isnan(value) else "RK_INFINITY" if value > 0 else "-RK_INFINITY"
    text = np.format_float_scientific(value, unique=True, trim="-").replace("e+0", "e").replace("e-0", "e-")
    text = text.removesuffix("e0")
    return text + ("" if "e" in text or "." in text else ".0") + ("f" if real is np.float32 else "")


def name_in_c(name: str) -> str:
    """Return the name of a cell's value in C."""
    plain = re.sub(r"[^A-Za-z0-9_]", lambda match: f"u{ord(match[0]):x}", name)
    return f"{plain}_" if plain in KEYWORDS or plain.startswith(("rk_", "RK_")) else plain


def _unchanged(one: Any) -> None:
    """Replace nothing."""


def _taken_branch(one: Any) -> Any:
    """Return the branch of a conditional whose condition is known; None for any other expression."""
    is_known = known(one.arguments[0]) if one.op == "if" else None
    return None if is_known is None else one.arguments[1] if is_known else one.arguments[2]


class CText(CellText):
    """Writer of the stages of one cell as C, in one dtype, for a function of the library."""

    function, error = "export_c", ValueError  # of refusals
    functions_of = FUNCTIONS
    refusal = "call functions that have the same bits in C"

    def __init__(self, cell: Any, real: Any) -> None:
        super().__init__(cell)
        self.real, self.name_of = real, lambda one: name_in_c(one.arguments[0].name)
        self.where = f"cell {cell.declaration.name}" if hasattr(cell, "declaration") else "activation"

    def stage(self, stage: Any, wanted: list[str]) -> tuple[list[str], list[str], list[str]]:
        """Return the names that a stage reads, lines of what it computes, and the values that it writes: those
        `wanted`."""
        found = dict(zip(stage.writes, self.expressions(stage), strict=True))
        return self.values([found[name] for name in wanted])

    def values(self, outputs: list[Any]) -> tuple[list[str], list[str], list[str]]:
        """Return the names that these expressions read, lines of what they share, and their texts."""
        outputs = rebuilt(rebuilt(outputs, _unchanged, self.written_out), _unchanged, _taken_branch)
        self.cell.hints |= {one: name_in_c(name) for one, name in self.cell.hints.items()}
        order = in_order(outputs)
        read = dict.fromkeys(one.arguments[0].name for one in order if one.op == "read")
        self.local, self.functions = {}, dict.fromkeys([*KEYWORDS, *map(name_in_c, read)])
        *lines, _ = self.lines(outputs, order)
        return [*read], lines, [self.of(one) for one in outputs]

    def written_out(self, one: Any) -> Any:
        if one.op is softplus:
            (found,) = read_function(type(self.own), softplus, list(one.arguments))
            return found
        return super().written_out(one)

    def assignment(self, one: Any, name: str, text: str) -> str:
        return f"const {'int' if one.is_condition else 'real'} {name} = {text};"

    def plain(self, one: Any, own: int) -> list[Any]:
        """Return the parts of the text of an expression, as `Text.plain`."""
        if one.op == "if":
            condition, yes, no = one.arguments
            return ["((", (condition, 0), ") ? (", (yes, 0), ") : (", (no, 0), "))"]
        if one.op == "not":
            return ["!(", (one.arguments[0], 0), ")"]
        if one.op in _CONDITIONS:
            first, second = one.arguments
            return ["((", (first, 0), f") {_CONDITIONS[one.op]} (", (second, 0), "))"]
        if one.op == "const" and isinstance(one.arguments[0], bool):
            return [str(int(one.arguments[0]))]
        if one.op == "**":
            return self.power(*one.arguments)
        if not isinstance(one.op, str):
            if one.op not in self.functions_of:
                name = getattr(one.op, "__name__", "a function")
                raise self.error(message(self.function, self.where, self.refusal, name))
            return self.called_with(self.functions_of[one.op], one.arguments)
        return super().plain(one, own)

    def called_with(self, function: str, arguments: Any) -> list[Any]:
        """Return the parts of a call of a C function."""
        commas = [text for part in arguments for text in (", ", (part, 0))]
        return [f"{function}(", *commas[1:], ")"]

    def power(self, base: Any, exponent: Any) -> list[Any]:
        number = exponent.arguments[0] if exponent.op == "const" else None
        if isinstance(number, bool) or number not in _POWERS:
            expected = f"have powers of {_POWERS[0]} to {_POWERS[-1]}"
            raise self.error(message(self.function, self.where, expected, "another exponent"))
        factor = (base, 7)
        square = [factor, " * ", factor]
        products = {1: [factor], 2: square, 3: [factor, " * (", *square, ")"], 4: ["(", *square, ") * (", *square, ")"]}
        return ["(", *products[number], ")"]

    def number(self, number: Any) -> str:
        return literal(number, self.real)
