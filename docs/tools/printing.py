"""Sets the expressions of one unit in LaTeX: * between vectors is the
elementwise product, and numbers stand before them."""

import math

from docs.tools.letters import letter

from rnnkit_kernels.cells import activations
from rnnkit_kernels.cells.activations import softplus
from rnnkit_kernels.cells.functions import (
    clip,
    exp,
    fma,
    mean,
    sigmoid,
    tanh,
)
from rnnkit_kernels.cells.functions import value as applied

SUM, PRODUCT, ATOM = 0, 1, 2
FUNCTIONS = {
    sigmoid: r"\sigma",
    tanh: r"\tanh",
    exp: r"\exp",
    max: r"\max",
    min: r"\min",
    clip: r"\operatorname{clip}",
    mean: r"\operatorname{mean}",
    softplus: r"\operatorname{softplus}",
    math.sqrt: r"\operatorname{sqrt}",
    "LN": r"\operatorname{LN}",
}
ACTIVATIONS = {
    activations.Sigmoid: r"\sigma",
    activations.Tanh: r"\tanh",
    activations.Relu: r"\operatorname{ReLU}",
    activations.HardSigmoid: r"\operatorname{hard}\sigma",
    activations.Softplus: r"\operatorname{softplus}",
}
COMPARED = {
    "<": "<", "<=": r"\le", ">": ">", ">=": r"\ge", "==": "=", "!=": r"\ne"
}  # fmt: skip


class Printer:
    """Prints expressions. `named` are those that have a line -> their text;
    `symbol` is a function: symbol -> its text, and whether that is a sum.
    """

    def __init__(self, cell, symbol):
        self.cell, self.symbol, self.named = cell, symbol, {}

    def text(self, one, level=SUM):
        """The text of an expression, in brackets if it binds less than
        `level`."""
        own, found = self.parts(one)
        return found if own >= level else f"({found})"

    def parts(self, one):
        """How an expression binds, and its text."""
        if one in self.named:
            return ATOM, self.named[one]
        op, arguments = one.op, one.arguments
        if op == "read":
            found, is_sum = self.symbol(arguments[0])
            if not isinstance(found, str):
                return self.parts(found)
            return (SUM if is_sum else ATOM), found
        if op == "const":
            return ATOM, f"{arguments[0]:g}"
        if op == "field":
            return ATOM, letter(type(self.cell).__name__, arguments[0])
        if op == "if":
            return self.choice(one)
        if op in ("+", "-") or op is fma:
            return SUM, self.sum(one)
        if op == "*":
            return PRODUCT, self.product([one])
        if op == "/":
            above, below = map(self.text, arguments)
            return ATOM, rf"\frac{{{above}}}{{{below}}}"
        if op == "**":
            base, power = (
                self.text(arguments[0], ATOM),
                self.text(arguments[1]),
            )
            return ATOM, f"{base}^{{{power}}}"
        if op == "neg":
            return SUM, f"-{self.text(arguments[0], PRODUCT)}"
        if op is applied:
            return self.activation(*arguments)
        return (
            ATOM,
            f"{FUNCTIONS[op]}({', '.join(map(self.text, arguments))})",
        )

    def sum(self, one):
        """A sum; what a matrix multiplies comes first."""
        if one.op is fma:
            first, second, rest = one.arguments
            if second.op == "-" and second.arguments[1] is rest:
                return self.mixture(first, second.arguments[0], rest)
            if first.op == "-" and first.arguments[1] is rest:
                return self.mixture(second, first.arguments[0], rest)
            parts = [self.product([first, second]), self.text(rest)]
            if self.is_linear(rest):
                parts.reverse()
            return " + ".join(parts)
        left, right = one.arguments
        if (
            one.op == "+"
            and self.is_linear(right)
            and not self.is_linear(left)
        ):
            left, right = right, left
        last = self.text(right, PRODUCT if one.op == "-" else SUM)
        return f"{self.text(left)} {one.op} {last}"

    def mixture(self, weight, one, other):
        """weight*(one - other) + other, as papers write it."""
        own = self.text(weight, PRODUCT)
        mark = r"\," if weight.is_uniform else r"\odot"
        one, other = self.text(one, ATOM), self.text(other, ATOM)
        return rf"{own} {mark} {one} + (1 - {own}) {mark} {other}"

    def is_linear(self, one):
        return (
            one not in self.named
            and one.op == "read"
            and self.symbol(one.arguments[0])[1]
        )

    def product(self, factors):
        """A product: numbers first, then elementwise factors."""
        flat, waiting = [], list(reversed(factors))
        while waiting:
            one = waiting.pop()
            if one.op == "*" and one not in self.named:
                waiting.extend(reversed(one.arguments))
            else:
                flat.append(one)
        flat = [one for one in flat if not one.is_const(1)]
        numbers = [self.text(one, ATOM) for one in flat if one.is_uniform]
        vectors = [
            self.text(one, ATOM) for one in flat if not one.is_uniform
        ]
        elementwise = [r" \odot ".join(vectors)] if vectors else []
        return r" \, ".join([*numbers, *elementwise])

    def activation(self, field, x):
        """A parameter that is an activation, by its default."""
        found = getattr(self.cell, field.arguments[0])
        if isinstance(found, activations.ScaledTanh):
            before = "" if found.alpha == 1 else rf"{found.alpha:g} \, "
            inner = rf"{found.beta:g} \, {self.text(x, ATOM)}"
            level = PRODUCT if before else ATOM
            return level, rf"{before}\tanh({inner})"
        return ATOM, f"{ACTIVATIONS[type(found)]}({self.text(x)})"

    def choice(self, one):
        condition, yes, no = one.arguments
        if is_relu(one):
            return ATOM, rf"\max({self.text(no)}, 0)"
        if condition.op == ">" and yes.is_const(0) and no.op == "-":
            if condition.arguments == no.arguments:
                return ATOM, rf"\min({self.text(no)}, 0)"
        yes, no = self.text(yes), self.text(no)
        test = self.condition(condition)
        lines = rf"{yes} & \text{{if }} {test} \\ {no} & \text{{otherwise}}"
        return ATOM, rf"\begin{{cases}} {lines} \end{{cases}}"

    def condition(self, one):
        if one.op in COMPARED:
            left, right = map(self.text, one.arguments)
            return f"{left} {COMPARED[one.op]} {right}"
        parts = [self.condition(part) for part in one.arguments]
        if one.op == "not":
            return rf"\text{{not }} ({parts[0]})"
        return rf" \text{{ {one.op} }} ".join(parts)


def is_function(one):
    """Whether an expression applies a function or makes a choice."""
    arithmetic = "*", "+", "-", "/", "neg", "**", "read", "const", "field"
    return one.op not in arithmetic and one.op is not fma


def is_relu(one):
    """Whether an expression is `0 if x < 0 else x`."""
    if one.op != "if" or one.arguments[0].op != "<":
        return False
    condition, yes, no = one.arguments
    x, bound = condition.arguments
    return x is no and bound.is_const(0) and yes.is_const(0)
