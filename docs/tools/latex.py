"""The equations of a cell in LaTeX, derived from the functions that run.

`equations_of(kind)` reads the forward stages of a cell as the engine does
and returns aligned lines, one for each gate and state. Thus the pages show
what the code computes. Sphinx sets them: `docs/tools/equations.py`.
"""

from docs.tools.letters import NOISES, at, below, letter
from docs.tools.printing import Printer, is_function, is_relu

from rnnkit_kernels.cells.activations import softplus
from rnnkit_kernels.cells.expression_reader import SELF
from rnnkit_kernels.cells.expressions import const, expression, rebuilt
from rnnkit_kernels.cells.layer_norm import (
    four_normalised,
    normalised,
    two_normalised,
)
from rnnkit_kernels.cells.reading import _Reader
from rnnkit_kernels.cells.rules import parameter_types
from rnnkit_kernels.cells.running import with_defaults

NORMALISED = {normalised: 1, two_normalised: 2, four_normalised: 4}
TILDE = "ifogzrnu"  # gates whose letter is that of the activated value


class Symbol:
    """A value that equations read. `role` is "gate" (a pre-activation),
    "product" (R h, kept separately) or "" (any other); `linear` is the text
    of the first two; `inlined` is an expression that stands in its place.
    """

    expression = None  # the engine's readers ask for it

    def __init__(self, text, role="", kind="slot", gate=None, linear=None):
        self.text, self.role, self.kind = text, role, kind
        self.gate, self.linear, self.inlined = gate, linear, None


class Reader(_Reader):
    """Reads functions that have a name of their own in mathematics as one
    operation, instead of what they compute."""

    def inlined(self, node, function, given, named):
        if function is softplus:
            return expression(softplus, *given)
        if function in NORMALISED:
            found = [expression("LN", one) for one in given[:-1]]
            return found if len(found) > 1 else found[0]
        return super().inlined(node, function, given, named)


class Stages:
    """The forward stages of a cell, read as expressions of symbols."""

    def __init__(self, kind):
        self.kind, self.cell = kind, with_defaults(kind)
        self.declaration, self.name = kind.declaration, kind.__name__
        self.single = len(self.declaration.gates) == 1
        self.now, self.stages = self.inputs(), []
        for stage in self.declaration.equations:
            if not stage.is_gradient:
                self.read(stage)

    def inputs(self):
        """The symbols of a step's inputs, by name."""
        declaration = self.declaration
        found = {"h_prev": Symbol("h_{t-1}")}
        for state in declaration.states:
            found[f"{state}_prev"] = Symbol(
                at(letter(self.name, state), "t-1")
            )
        for one in declaration.vectors:
            kind = "scalar" if one in declaration.scalars else "vector"
            found[one.name] = Symbol(letter(self.name, one.name), kind=kind)
        for one in declaration.inputs:
            found[one.name] = Symbol(at(letter(self.name, one.name)))
        for one in declaration.noises:
            text = NOISES[one.name]
            found[one.name] = Symbol(at(text) if one.per_step else text)
        for gate in declaration.gates:
            text = letter(self.name, gate.name)
            found[gate.name] = Symbol(at(text), "gate", gate=gate)
            if gate.apart:
                text = letter(self.name, gate.apart)
                found[gate.apart] = Symbol(at(text), "product", gate=gate)
        return {
            name: expression("read", one) for name, one in found.items()
        }

    def read(self, stage):
        """Read a stage: what it writes, and the names of its variables."""
        types = parameter_types(self.kind).items()
        fields = {n: "flag" if one is bool else "field" for n, one in types}
        hints = {}
        reader = Reader(self.kind, stage.function, fields, hints, {}, 0)
        given = zip(
            stage.reads, (self.now[n] for n in stage.reads), strict=True
        )
        found = reader.run({"self": SELF} | dict(given))
        for (
            gate
        ) in self.declaration.gates:  # operands of R, before they change
            self.operand_of(gate)
        texts = rebuilt([*found, *hints], self.flag, self.decided)
        outputs = dict(zip(stage.writes, texts, strict=False))
        named = dict(zip(texts[len(found) :], hints.values(), strict=True))
        self.stages.append((outputs, self.names(outputs, named, fields)))

    def names(self, outputs, hints, fields):
        """The expressions that get a line of their own -> their symbols."""
        found, stored = {}, ("h", *self.declaration.states)
        for name in sorted(outputs, key=lambda name: name not in stored):
            one = outputs[name]
            symbol = Symbol(at(letter(self.name, name)))
            self.now[name] = expression("read", symbol)
            if name in self.declaration.sources and len(name) > 2:
                symbol.inlined = one
            elif one not in found and one.op != "read":
                found[one] = symbol
            elif one in found:
                self.now[name] = expression("read", found[one])
        last = {name: one for one, name in hints.items()}
        for name, one in last.items():
            plain = one.op in ("read", "const", "field") or one in found
            apart = [gate.apart for gate in self.declaration.gates]
            taken = *fields, *outputs, *apart
            if not plain and len(name) <= 2 and name not in taken:
                found[one] = Symbol(at(letter(self.name, name)))
        return found

    def flag(self, one):
        """A flag is its default."""
        if one.op == "flag":
            return const(getattr(self.cell, one.arguments[0]))
        return None

    def decided(self, one):
        """The branch that a flag chooses."""
        if one.op != "if":
            return None
        (condition,) = rebuilt([one.arguments[0]], self.flag)
        if condition.op != "const":
            return None
        return one.arguments[1 if condition.arguments[0] else 2]

    def operand_of(self, gate):
        """What R of a gate multiplies: an expression, None for nothing."""
        name = {"h": "h_prev", None: None}.get(
            gate.multiplies, gate.multiplies
        )
        return self.now.get(name)


class Equations(Stages):
    """The lines of a cell."""

    def __init__(self, kind):
        super().__init__(kind)
        self.printer = Printer(self.cell, self.text_of_symbol)
        self.named = {}
        for _, names in self.stages:
            self.named |= names
        self.alone = set()  # symbols of gates that get a line of their own
        self.name_gates()
        self.lines, self.done = [], set()
        texts = [
            at(letter(self.name, gate.name))
            for gate in self.declaration.gates
        ]
        for outputs, _ in self.stages:
            there = reachable(outputs.values())
            gates = [
                one
                for one in there
                if one in self.named and self.named[one].text in texts
            ]
            gates.sort(key=lambda one: texts.index(self.named[one].text))
            for one in (*gates, *outputs.values()):
                self.write(one)

    def consumers(self):
        """Symbol of a gate -> what uses it: the nearest function around it,
        or the expression that has a line."""
        found, seen = {}, set()

        def visit(one, around):
            around = (
                one if is_function(one) or one in self.named else around
            )
            if one.op == "read":
                symbol = one.arguments[0]
                if symbol.role:
                    found.setdefault(symbol, {})[around] = None
                return
            key = one, around
            if key not in seen:
                seen.add(key)
                for part in (
                    one.operands[2:] if is_relu(one) else one.operands
                ):
                    visit(part, around)

        for outputs, names in self.stages:
            for one in (*outputs.values(), *names):
                visit(one, one)
        return found

    def name_gates(self):
        """Give each gate a line: what its only function computes, or, if
        there are several, its pre-activation."""
        taken = {symbol.text for symbol in self.named.values()}
        consumers = self.consumers()
        for symbol, users in consumers.items():
            user, *others = users
            lonely = not others and (is_function(user) or user.op == "*")
            is_gate = symbol.role == "gate" and symbol.gate.input
            if lonely and is_function(user) and user not in self.named:
                inner = not is_gate and self.is_beside_gate(user, consumers)
                if symbol.role == "gate" and not inner:
                    if symbol.text not in taken:
                        self.named[user] = Symbol(symbol.text)
                        taken.add(symbol.text)
            elif not lonely:
                self.alone.add(symbol)
                functions = all(map(is_function, users))
                if (
                    functions
                    and symbol.gate.name in TILDE
                    and not symbol.gate.apart
                ):
                    symbol.text = at(rf"\tilde{{{symbol.gate.name}}}")

    def is_beside_gate(self, inner, consumers):
        """Whether a function is an argument of one that a gate is, too."""
        users = [
            user
            for s, found in consumers.items()
            if s.gate.input
            for user in found
        ]
        return any(
            user is not inner and inner in reachable([user])
            for user in users
        )

    def write(self, one):
        """Write the lines that an expression needs, then its own."""
        if one in self.done:
            return
        self.done.add(one)
        if one.op == "read":
            symbol = one.arguments[0]
            if symbol.role:
                operand = self.operand_of(symbol.gate)
                if operand is not None:
                    self.write(operand)
            if symbol in self.alone:
                self.lines.append((symbol.text, self.linear(symbol)))
            if symbol.inlined is not None:
                self.write(symbol.inlined)
        for part in one.operands:
            self.write(part)
        if one in self.named:
            self.lines.append((self.named[one].text, self.text(one)))

    def text(self, one):
        """The right side of the line of an expression."""
        self.printer.named = {
            e: s.text for e, s in self.named.items() if e is not one
        }
        return self.printer.text(one)

    def linear(self, symbol):
        """W x + R h + b of a gate."""
        gate, parts = symbol.gate, []
        own = "" if self.single else below(gate.name)
        if symbol.role == "gate" and gate.input:
            parts.append(f"W{own} x_t")
        operand = self.operand_of(gate)
        if operand is not None and (symbol.role == "product") == bool(
            gate.apart
        ):
            self.printer.named = {e: s.text for e, s in self.named.items()}
            parts.append(f"R{own} {self.printer.text(operand, 2)}")
        side = ""
        if gate.apart:
            side = "^W" if symbol.role == "gate" else "^R"
        return " + ".join([*parts, f"b{own}{side}"])

    def text_of_symbol(self, symbol):
        """A symbol's text, and whether it is a sum."""
        if symbol.inlined is not None:
            return symbol.inlined, False
        if symbol.role and symbol not in self.alone:
            return self.linear(symbol), True
        return symbol.text, False


def reachable(parts):
    found, waiting = set(), list(parts)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting.extend(one.operands)
    return found


def equations_of(*kinds):
    """The equations of cells in LaTeX, each line once."""
    lines = dict.fromkeys(
        line for kind in kinds for line in Equations(kind).lines
    )
    body = " \\\\\n".join(f"{left} &= {right}" for left, right in lines)
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"
