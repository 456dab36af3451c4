"""Reverse-mode differentiation of a cell's forward equations, loop by loop, on their expressions.

The gradient of a loop is again one loop. It reads forward values from memory if they are stored anyway (states, h_prev,
names that stages pass on), and recomputes them if that is cheap. Others are saved: in the slot of a gate that is no
longer read, or in a new slot. The choice depends only on the equations, so results do not depend on the machine.
`DERIVATION_VERSION` is the version of these rules, and a part of a cell's source.
"""

import math

from .derivatives import given_for, gradients_of
from .expressions import ONE, ZERO, choice, expression, in_order, product, rebuilt, total
from .loops import Value, cost, loops_of
from .reading import read_function
from .rules import cell_error, describe_stage

DERIVATION_VERSION = 1
_MAX_RECOMPUTE_GRADIENT = 20  # operations: a slow function and a few others; a value that costs more is saved
_FEW = 4  # operations: with a mean and at most these, x is saved instead of a function of x and the mean
_LEAVES = "const", "field", "flag", "gradient"


class Derivation:
    """The loops of a cell, forward and backward.

    Attributes
    ----------
    loops : list of Loop
        The forward loops; their values include those saved only for the gradient.
    gradients : list of dict
        For each loop: value -> the gradient by it, which the gradient of the loop writes.
    step_inputs : dict of str to Value
        The inputs of a step.
    saved : dict of Value to Expression
        The slot values that the gradient reads, and their expressions.
    hints : dict of Expression to str
        Variable names from the source.
    """

    def __init__(self, kind):
        self.kind, self.hints, self.saved = kind, {}, {}
        self.loops, self.step_inputs = loops_of(kind, self.hints)
        self.final = {value.name: value for loop in self.loops for value in loop.values}
        sources = (source for source in kind.declaration.sources if source != "h")
        self.sources = [self.final[source] for source in sources if source in self.final]
        self.gradients = _differentiated(self)
        self._choose_saved()

    def _choose_saved(self):
        """Choose the saved values, and rewrite the gradients to read them."""
        declaration = self.kind.declaration
        reads = {self.final[state].expression: self.final[state] for state in declaration.states}
        order = in_order([value.expression for loop in self.loops for value in loop.values])
        self.saved = {value: value.expression for value in self.sources if value.kind == "slot"}  # for R's own gradient
        reads |= {value.expression: value for value in self.saved}
        for number, own in enumerate(self.gradients):
            used = _forward_parts(own.values(), set(order))
            for one in filter(used.__contains__, order):
                if self._recompute_cost(one, reads) > _MAX_RECOMPUTE_GRADIENT:
                    self._save(one, number, reads)
        for number, own in enumerate(self.gradients):
            made = rebuilt(list(own.values()), lambda one: self._in_gradient(one, reads), self._again)
            self.gradients[number] = dict(zip(own, made, strict=True))

    def _save(self, one, number, reads):
        one = self._unit_part(one, reads) or one
        value = one.arguments[0] if one.op == "read" else None
        if value is not None and value.kind == "slot":
            self.saved[value] = one
            if value.expression is not None:
                reads[value.expression] = value
            return
        if value is not None:  # h, or a state that a later stage overwrote
            one, number = value.expression, value.loop
        own = next((own for own in self.loops[number].values if own.expression is one and own.kind == "slot"), None)
        if own is None:
            own = Value(None, "slot", number, choice(one, ONE, ZERO) if one.is_condition else one)
            self.loops[number].values.append(own)
        self.saved[own], reads[one] = one, own

    def _unit_part(self, one, reads):
        """Return x if an expression is a cheap function of means and a single value x that must be saved, for example
        x - mean(x): to save x for all such expressions takes one slot. None otherwise."""
        parts = [part for part in in_order([one]) if part not in reads and not part.is_uniform]
        lost = [part for part in parts if part.op == "read" and not self._is_available(part.arguments[0])]
        means = any(part.op == "read" and part.arguments[0].kind == "mean" for part in in_order([one]))
        return lost[0] if means and len(lost) == 1 and sum(map(cost, parts)) <= _FEW else None

    def _is_available(self, value):
        """Whether a value is in memory when the gradient is computed."""
        if value.kind == "slot":
            return value in self.saved
        is_input = value.kind == "mean" or value.expression is None
        return is_input or (value.kind == "state" and self.final[value.name] is value)

    def _recompute_cost(self, one, reads):
        """Return the operations that recompute an expression in the gradient; infinite if it cannot be recomputed."""
        found, waiting = {}, [one]
        while waiting:
            part = waiting.pop()
            if part in found or part in reads:
                continue
            found[part], value = cost(part), part.arguments[0]
            if part.op != "read":
                waiting.extend(part.operands)
            elif not self._is_available(value):
                if value.expression is None:
                    return math.inf
                waiting.append(value.expression)
        return sum(found.values())

    def _in_gradient(self, one, reads):
        """Return what replaces a forward expression in the gradient; None if it stays as it is."""
        if one not in reads:
            return None
        read = expression("read", reads[one])
        return expression("!=", read, ZERO) if one.is_condition else read

    def _again(self, one):
        """Return the expression of a value that is not in memory, to be recomputed; None for any other expression."""
        is_lost = one.op == "read" and not self._is_available(one.arguments[0])
        return one.arguments[0].expression if is_lost else None


def _forward_parts(outputs, forward):
    """Return the largest subexpressions of these gradients that are forward expressions."""
    found, seen, waiting = set(), set(), list(outputs)
    while waiting:
        one = waiting.pop()
        if one in seen or one.op in _LEAVES:
            continue
        seen.add(one)
        if one in forward:
            found.add(one)
        else:
            waiting.extend(one.operands)
    return found


def _differentiated(cell):
    """Return the gradients that each loop writes: they include what later loops contribute, so that in the end those
    by the inputs of the step are complete."""
    declaration, loops, step_inputs = cell.kind.declaration, cell.loops, cell.step_inputs
    found = [{} for _ in loops]
    # value -> the value whose memory holds its gradient
    gradient_in = {cell.final[name]: cell.final[name] for name in ("h", *declaration.states)}
    means = {}  # mean -> means of its gradients, one per loop that reads it: their sum is the gradient by a unit's term

    def write(number, value, gradient):
        if value.kind == "mean":
            own = Value(value.name, "mean", number, value.expression)
            found[number][own] = gradient
            means.setdefault(value, []).append(own)
            return
        if value in gradient_in and value.kind not in ("vector", "scalar"):  # which accumulate what is written
            gradient = total(gradient, expression("gradient", gradient_in.pop(value)))
        states = (value.name, f"{value.name}_prev", value.name.removesuffix("_prev")) if value.kind == "state" else ()
        of_states = (one.name for one in gradient_in.values() if one.kind == "state")
        is_taken = any(name in states for name in of_states)  # dc and dc_prev share memory
        own = Value(value.name, "slot", number) if is_taken else value
        found[number][own], gradient_in[value] = gradient, own

    for of_phase, phase in reversed(list(enumerate(declaration.phases))):
        own = [number for number, loop in enumerate(loops) if loop.declared == of_phase]
        for number in reversed(own):
            gradients = _reversed(cell, loops[number], {value: [own] for value, own in gradient_in.items()} | means)
            for value in loops[number].values:
                gradient_in.pop(value, None)
            for value, gradient in gradients.items():
                write(number, value, gradient)
        needed = [name for of_r in phase.products for name in declaration.names_of(of_r)]
        if of_phase == 0:
            needed += [gate.name for gate in declaration.gates if gate.multiplies is None or gate.apart is not None]
            needed += [one.name for one in (*declaration.vectors, *declaration.inputs)]
            needed += [f"{state}_prev" for state in declaration.states]
            needed += ["h_prev"] if any(step_inputs["h_prev"] in loop.read() for loop in loops) else []
        for of_r in phase.products if of_phase else ():
            gradient_in[cell.final[of_r.source]] = cell.final[of_r.source]  # the product adds to it
        for value in map(step_inputs.get, needed):
            if gradient_in.get(value) is not value:
                write(own[0], value, ZERO)
    return found


def _reversed(cell, loop, gradient_in):
    """Return the gradients by what a loop reads, from the gradients by what it writes (in the values `gradient_in`)."""
    order, by = in_order([value.expression for value in loop.values]), {}
    for value in loop.values:
        for own in gradient_in.get(value, []):
            by[value.expression] = total(by.get(value.expression, ZERO), expression("gradient", own))
    varies = set()
    for one in order:
        if one.op == "read" or not varies.isdisjoint(one.operands):
            varies.add(one)
    for one in reversed(order):
        for part, gradient in _gradients_of(cell, loop, one, by.get(one, ZERO)):
            if part in varies:
                by[part] = total(by.get(part, ZERO), gradient)
    read = (one for one in order if one.op == "read" and one.arguments[0].kind != "noise")
    return {one.arguments[0]: by[one] for one in read if not by.get(one, ZERO).is_const(0)}


def _gradients_of(cell, loop, one, gradient):
    """Return (operand, the gradient by it) for an expression; derivatives given by users are applied."""
    if one.op in ("read", *_LEAVES) or one.is_condition or gradient.is_const(0):
        return []
    given, name = given_for(one.op), getattr(one.op, "__name__", one.op)
    if given is None:
        found = gradients_of(one, gradient)
        if not found:
            where, expected = describe_stage(loop.function), "use functions with a known derivative"
            cure = f"give it under @derivative({name}), or write the gradient under @gradient"
            raise cell_error(cell.kind.declaration, where, expected, name, cure)
        return found
    slopes = read_function(cell.kind, given, one.arguments)
    if len(slopes) != len(one.arguments):
        expected = f"return the derivative of {name} by each of its {len(one.arguments)} arguments"
        raise cell_error(cell.kind.declaration, describe_stage(given), expected, len(slopes))
    return [(part, product(gradient, slope)) for part, slope in zip(one.arguments, slopes, strict=True)]
