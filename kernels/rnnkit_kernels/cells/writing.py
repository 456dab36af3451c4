"""Code generation: assigns slots to the values of a derivation, and writes expressions as Python functions."""

import keyword
import linecache
import math
from itertools import chain, count
from textwrap import shorten
from typing import NamedTuple

from .expressions import COMPARISONS, expression, in_order

_BINDS = {"if": 0, "or": 1, "and": 2, "not": 3, **dict.fromkeys(COMPARISONS, 4)}
_BINDS |= {"+": 5, "-": 5, "*": 6, "/": 6, "neg": 7, "**": 8}  # operator precedence
_ATOM = 9
_NUMBERS = count()  # of generated functions, to make their file names in linecache unique
_LONGEST = 60  # characters of a saved expression in `keeps`
_DEEPEST = 60  # nested operations in a line: Python's parser takes at most 200 nested brackets


class Slots:
    """Assignment of values to slots of the gate buffer: the slot of its name, else that of a slot value it is computed
    from, else any other, the first of these that is free during its lifetime; else a new slot."""

    def __init__(self, cell):
        self.cell, declaration = cell, cell.kind.declaration
        self.names, self.of = list(declaration.slots[: len(declaration.slots) - len(declaration.extra_slots)]), {}
        self.means, self.gradient_means = [], []
        self.first_own = len(self.names)
        self.taken = {name: [] for name in self.names}  # slot -> [(first loop, last loop)]
        self.forever = len(cell.loops)
        last = {value: number for number, loop in enumerate(cell.loops) for value in loop.read()}
        for phase_number, phase in enumerate(declaration.phases):
            first = next(number for number, loop in enumerate(cell.loops) if loop.declared == phase_number)
            for name in (name for product in phase.products for name in declaration.names_of(product)):
                last.setdefault(cell.step_inputs[name], first)
                last[cell.step_inputs[name]] = max(last[cell.step_inputs[name]], first)
        for name in self.names:
            value = cell.step_inputs.get(name)
            if value is not None:
                self._take(value, name, -1, last.get(value, -1))
        for value in cell.sources:
            if value.kind == "slot":
                self._take(value, value.name, -1, self.forever)
        for number, loop in enumerate(cell.loops):
            loop.values = [one for one in loop.values if one.kind != "slot" or one in last or one in cell.saved]
            for value in loop.values:
                if value.kind == "slot" and value not in self.of:
                    self._place(value, number, last.get(value, number))
        for own in cell.gradients:
            for value in own:
                if value.kind == "slot" and value not in self.of:
                    self._new(value, -1, self.forever)
        for loop in cell.loops:
            self._name_means(loop.values, self.means)
        for own in cell.gradients:
            self._name_means(own, self.gradient_means)

    def _name_means(self, values, names):
        for value in values:
            if value.kind == "mean":
                hint = self.cell.hints.get(expression("read", value)) or "mean"
                self.of[value] = self._free(value.name or hint)
                names.append(self.of[value])

    def _take(self, value, slot, first, last):
        self.of[value] = slot
        self.taken[slot].append((first, self.forever if value in self.cell.saved else last))

    def _place(self, value, first, last):
        last = self.forever if value in self.cell.saved else last
        reads = [one.arguments[0] for one in in_order([value.expression]) if one.op == "read"]
        near = [self.of[one] for one in reads if one.kind == "slot"]
        for slot in (value.name, *near, *self.names):
            if slot in self.taken and all(last <= start or stop <= first for start, stop in self.taken[slot]):
                self._take(value, slot, first, last)
                return
        self._new(value, first, last)

    def _new(self, value, first, last):
        slot = self._free(value.name or self.cell.hints.get(value.expression) or "kept")
        self.names.append(slot)
        self.taken[slot] = []
        self._take(value, slot, first, last)

    def _free(self, wanted):
        """Return this name, with a number appended if it is taken."""
        declaration = self.cell.kind.declaration
        others = {*self.names, *declaration.states, *(one.name for one in declaration.given()), "h", "self"}
        others |= {f"{state}_prev" for state in (*declaration.states, "h")} | {*self.means, *self.gradient_means}
        others |= {f"d{one}" for one in others}
        names = [wanted, *(f"{wanted}_{number}" for number in range(2, len(others) + 99))]
        return next(one for one in names if one not in others and f"d{one}" not in others and not one.endswith("_prev"))

    def name_of(self, value):
        """Return the name of a value in stages."""
        return self.of[value] if value.kind in ("slot", "mean") else value.name


class Written(NamedTuple):
    """The generated stages of a derivation."""

    stages: list
    slots: tuple  # names of the slots added to those of gates and products
    keeps: dict  # slot that the gradient reads -> saved expression
    means: tuple  # names of forward means, names of gradient means
    phase_of: dict  # operand of R -> phase of its products


def written(cell, stage_of):
    """Generate the stages of a derivation."""
    slots, forward, backward = Slots(cell), [], []

    def name(one):
        value = slots.name_of(one.arguments[0])
        return f"d{value}" if one.op == "gradient" else value

    def stage(own, phase, outputs, is_gradient, spare):
        if not outputs:
            return None
        names = [f"d{one}" if is_gradient else one for one in map(slots.name_of, outputs)]
        function, reads = _function(cell, own, list(outputs.values()), name, spare)
        return stage_of(function, reads, tuple(names), is_gradient, phase)

    for loop, own in zip(cell.loops, cell.gradients, strict=True):
        outputs = {value: value.expression for value in loop.values}
        forward.append(stage(loop.name, loop.phase, outputs, False, "h_prev"))
        backward.append(stage(f"through_{loop.name}", loop.phase, own, True, "dh"))
    text = Text(cell, name, {})
    keeps = {slots.of[value]: text.shortened(one) for value, one in cell.saved.items()}
    stages = [one for one in (*forward, *backward) if one is not None]
    means = tuple(slots.means), tuple(f"d{name}" for name in slots.gradient_means)
    declaration, begins = cell.kind.declaration, {}
    for loop in cell.loops:
        begins.setdefault(loop.declared, loop.phase)
    phase_of = {one.source: begins[number] for number, phase in enumerate(declaration.phases) for one in phase.products}
    phase_of["h"] = phase_of.pop("h_prev")
    return Written(stages, tuple(slots.names[slots.first_own :]), keeps, means, phase_of)


def source_text(function):
    """Return the source of a generated function."""
    return "".join(linecache.getlines(function.__code__.co_filename))


def _function(cell, name, outputs, name_of, spare):
    """Return a function of these expressions, and the names that it reads; `spare` if it reads none."""
    order = in_order(outputs)
    reads = list(dict.fromkeys(name_of(one) for one in order if one.op in ("read", "gradient"))) or [spare]
    text = Text(cell, name_of, _functions(order, reads))
    lines = text.lines(outputs, order)
    source = "\n    ".join([f"def {name}(self, {', '.join(reads)}):", *lines]) + "\n"
    file = f"<{cell.kind.__name__}.{name} {next(_NUMBERS)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    made = {}  # apart from the functions that it calls: a stage may be named like one of them
    exec(compile(source, file, "exec"), dict(text.functions), made)  # noqa: S102  the source above
    return made[name], tuple(reads)


def _functions(order, taken):
    """Return name -> what expressions refer to: functions, infinity and NaN. Names that values have get an
    underscore."""
    found = {}
    for one in order:
        own, name = one.op, getattr(one.op, "__name__", "")
        if one.op == "const" and not math.isfinite(one.arguments[0]):
            own, name = _special(one.arguments[0])
        if not isinstance(own, str):
            name = name if name.isidentifier() and not keyword.iskeyword(name) else "function"  # of a lambda
            while name in taken or found.get(name, own) is not own:
                name += "_"
            found[name] = own
    return found


def _special(number):
    """Return infinity or NaN as one object each, and its name."""
    return (math.nan, "nan") if math.isnan(number) else (math.inf, "inf")


class Text:
    """Writer of expressions as source text."""

    def __init__(self, cell, name_of, functions):
        self.cell, self.name_of, self.functions = cell, name_of, functions
        self.called = {function: name for name, function in functions.items()}
        self.local = {}

    def lines(self, outputs, order):
        """Return source lines: shared and deep subexpressions, then the return statement."""
        uses, depths = dict.fromkeys(order, 0), {}
        for one in (*(part for whole in order for part in whole.operands), *outputs):
            uses[one] += 1
        taken, lines = {"self", *map(self.name_of, (one for one in order if one.op in ("read", "gradient")))}, []
        taken |= set(self.functions)
        for one in order:
            depths[one] = 1 + max((depths[part] for part in one.operands), default=0)
            is_shared = uses[one] > 1 or depths[one] > _DEEPEST
            if is_shared and one.operands and one.op not in ("read", "gradient"):
                text, wanted = self.of(one), self.cell.hints.get(one, "t")
                names = chain([wanted], (f"{wanted}{number}" for number in count(1)))
                self.local[one], depths[one] = next(name for name in names if name not in taken), 0
                taken.add(self.local[one])
                lines.append(self.assignment(one, self.local[one], text))
        return [*lines, f"return {', '.join(self.of(one) for one in outputs)}"]

    def assignment(self, one, name, text):
        """Return the line that gives a name to an expression."""
        return f"{name} = {text}"

    def of(self, one, longest=math.inf):
        """Return the text of an expression, or at least its first characters, `longest` of them."""
        parts, waiting, length = [], [(one, 0)], 0  # waiting: texts, and expressions with `binds`, see `parts`
        while waiting and length < longest:
            part = waiting.pop()
            if isinstance(part, str):
                parts.append(part)
                length += len(part)
            else:
                waiting.extend(reversed(self.parts(*part)))
        return "".join(parts)

    def shortened(self, one):
        """Return the text of an expression, cut if it is long. A whole tree may be exponentially long."""
        return shorten(self.of(one, 4 * _LONGEST), _LONGEST, placeholder=" ...")

    def parts(self, one, binds):
        """Return the parts of a text, in brackets if it binds less strongly than `binds`."""
        if one in self.local:
            return [self.local[one]]
        own = _BINDS.get(one.op, _ATOM) if isinstance(one.op, str) else _ATOM
        parts = self.plain(one, own)
        negative = one.op == "const" and parts[0].startswith("-")
        return ["(", *parts, ")"] if own < binds or (negative and binds > _BINDS["+"]) else parts

    def plain(self, one, own):
        arguments = one.arguments
        if one.op in ("read", "gradient"):
            return [self.name_of(one)]
        if one.op == "const":
            return [self.number(arguments[0])]
        if one.op in ("field", "flag"):
            return [f"self.{arguments[0]}"]
        if one.op == "if":
            condition, yes, no = arguments
            return [(yes, 1), " if ", (condition, 1), " else ", (no, 0)]
        if one.op == "neg":
            return ["-", (arguments[0], own)]
        if one.op == "not":
            return ["not ", (arguments[0], own)]
        if not isinstance(one.op, str):
            commas = chain.from_iterable((", ", (part, 0)) for part in arguments)
            return [f"{self.called.get(one.op, one.op.__name__)}(", *list(commas)[1:], ")"]
        left, right = arguments
        first = own + 1 if one.op in COMPARISONS or one.op == "**" else own
        return [(left, first), f" {one.op} ", (right, own + 1)]

    def number(self, number):
        if math.isfinite(number):
            return repr(number)
        special, name = _special(number)
        return ("-" if number == -math.inf else "") + self.called.get(special, name)
