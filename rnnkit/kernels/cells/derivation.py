"""The gradient of a cell, from its forward equations: reverse mode, loop by loop, on their expressions.

The gradient of a loop is one loop too. What it needs of the way forward it reads where that stands anyway (states, h
before the step, what stages handed on), computes again where that is cheap, and has kept otherwise: in the slot of a
gate that nobody reads any more, or in one of its own. What is kept follows from the equations alone, so bits do not
depend on the machine. `RULE`, a part of a cell's source, is the version of these rules.
"""

import math

from .derivatives import given_for, gradients_of
from .expressions import ONE, ZERO, choice, expression, in_order, product, rebuilt, total
from .loops import Value, cost, loops_of
from .reading import read_function
from .rules import place, refusal

RULE = 1
_AGAIN = 20  # operations that are done again rather than kept for the gradient: a slow function and a few others
_FEW = 4  # operations from what differs from a mean to what the gradient needs
_LEAVES = "const", "field", "flag", "gradient"


class Derivation:
    """What a cell's loops compute, forward and back.

    Attributes
    ----------
    loops : list of Loop
        Forward; what is kept for the gradient alone is among their values.
    gradients : list of dict
        Of each loop: value -> the gradient by it, which the gradient of the loop writes.
    begun : dict of str to Value
        What a step begins with.
    saved : dict of Value to Expression
        The slot values that the gradient reads, and what they are.
    hints : dict of Expression to str
        What people call an expression.
    """

    def __init__(self, kind):
        self.kind, self.hints, self.saved = kind, {}, {}
        self.loops, self.begun = loops_of(kind, self.hints)
        self.final = {value.name: value for loop in self.loops for value in loop.values}
        sources = (source for source in kind.declaration.sources if source != "h")
        self.sources = [self.final[source] for source in sources if source in self.final]
        self.gradients = _differentiated(self)
        self._keep()

    def _keep(self):
        """Choose what is kept, and let the gradients read it."""
        declaration = self.kind.declaration
        reads = {self.final[state].made_of: self.final[state] for state in declaration.states}
        order = in_order([value.made_of for loop in self.loops for value in loop.values])
        self.saved = {value: value.made_of for value in self.sources if value.kind == "slot"}  # for R's own gradient
        reads |= {value.made_of: value for value in self.saved}
        for number, own in enumerate(self.gradients):
            used = _forward_parts(own.values(), set(order))
            for one in filter(used.__contains__, order):
                if self._again(one, reads) > _AGAIN:
                    self._keep_one(one, number, reads)
        for number, own in enumerate(self.gradients):
            made = rebuilt(list(own.values()), lambda one: self._in_gradient(one, reads))
            self.gradients[number] = dict(zip(own, made, strict=True))

    def _keep_one(self, one, number, reads):
        one = self._differing(one, reads) or one
        value = one.arguments[0] if one.op == "read" else None
        if value is not None and value.kind == "slot":
            self.saved[value] = one
            if value.made_of is not None:
                reads[value.made_of] = value
            return
        if value is not None:  # h, or a state that a later stage wrote again
            one, number = value.made_of, value.loop
        own = next((own for own in self.loops[number].values if own.made_of is one and own.kind == "slot"), None)
        if own is None:
            own = Value(None, "slot", number, choice(one, ONE, ZERO) if one.is_condition else one)
            self.loops[number].values.append(own)
        self.saved[own], reads[one] = one, own

    def _differing(self, one, reads):
        """What differs from a mean, of which an expression is made by a few operations: kept itself it takes no slot of
        its own. None of any other one."""
        parts = [part for part in in_order([one]) if part not in reads and not part.is_of_row]
        lost = [part for part in parts if part.op == "read" and not self._is_there(part.arguments[0])]
        means = any(part.op == "read" and part.arguments[0].kind == "mean" for part in in_order([one]))
        return lost[0] if means and len(lost) == 1 and sum(map(cost, parts)) <= _FEW else None

    def _is_there(self, value):
        """Whether a value stands in memory when the gradient is computed."""
        if value.kind == "slot":
            return value in self.saved
        begun = value.kind == "mean" or value.made_of is None
        return begun or (value.kind == "state" and self.final[value.name] is value)

    def _again(self, one, reads):
        """Operations that an expression takes in the gradient; infinite where it is lost."""
        found, waiting = {}, [one]
        while waiting:
            part = waiting.pop()
            if part in found or part in reads:
                continue
            found[part], value = cost(part), part.arguments[0]
            if part.op != "read":
                waiting.extend(part.operands)
            elif not self._is_there(value):
                if value.made_of is None:
                    return math.inf
                waiting.append(value.made_of)
        return sum(found.values())

    def _in_gradient(self, one, reads):
        """What stands for a forward expression in the gradient; None where that is itself."""
        if one in reads:
            read = expression("read", reads[one])
            return expression("!=", read, ZERO) if one.is_condition else read
        if one.op == "read" and not self._is_there(one.arguments[0]):
            [again] = rebuilt([one.arguments[0].made_of], lambda part: self._in_gradient(part, reads))
            return again
        return None


def _forward_parts(outputs, forward):
    """The largest parts of these gradients that are expressions of the way forward."""
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
    """Of each loop the gradients that it writes, with what other loops have written of them; those by all that a step
    begins with are complete in the end."""
    declaration, loops, begun = cell.kind.declaration, cell.loops, cell.begun
    found = [{} for _ in loops]
    # Of a value the one in which its gradient stands.
    gradient_in = {cell.final[name]: cell.final[name] for name in ("h", *declaration.states)}
    means = {}  # the same of means, each loop's that reads it: what all its units add up to is by the term of one

    def write(number, value, gradient):
        if value.kind == "mean":
            own = Value(value.name, "mean", number, value.made_of)
            found[number][own] = gradient
            means.setdefault(value, []).append(own)
            return
        if value in gradient_in and value.kind not in ("vector", "scalar"):  # those add up what is written
            gradient = total(gradient, expression("gradient", gradient_in.pop(value)))
        states = (value.name, f"{value.name}_prev", value.name.removesuffix("_prev")) if value.kind == "state" else ()
        of_states = (one.name for one in gradient_in.values() if one.kind == "state")
        is_taken = any(name in states for name in of_states)  # dc and dc_prev are one
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
            needed += [gate.name for gate in declaration.gates if gate.multiplies is None]
            needed += [one.name for one in (*declaration.vectors, *declaration.inputs)]
            needed += [f"{state}_prev" for state in declaration.states]
            needed += ["h_prev"] if any(begun["h_prev"] in loop.read() for loop in loops) else []
        for of_r in phase.products if of_phase else ():
            gradient_in[cell.final[of_r.source]] = cell.final[of_r.source]  # the product adds to it
        for value in map(begun.get, needed):
            if gradient_in.get(value) is not value:
                write(own[0], value, ZERO)
    return found


def _reversed(cell, loop, gradient_in):
    """The gradients by what a loop reads, from those by what it writes, which stand in these values."""
    order, by = in_order([value.made_of for value in loop.values]), {}
    for value in loop.values:
        for own in gradient_in.get(value, []):
            by[value.made_of] = total(by.get(value.made_of, ZERO), expression("gradient", own))
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
    """(operand, the gradient by it) of an expression, with derivatives that are given."""
    if one.op in ("read", *_LEAVES) or one.is_condition or gradient.is_const(0):
        return []
    given, name = given_for(one.op), getattr(one.op, "__name__", one.op)
    if given is None:
        found = gradients_of(one, gradient)
        if not found:
            cure = f"give it under @derivative({name}), or write the gradient under @gradient"
            raise refusal(cell.kind.declaration, place(loop.function), "be of functions with a derivative", name, cure)
        return found
    slopes = read_function(cell.kind, given, one.arguments)
    if len(slopes) != len(one.arguments):
        expected = f"return the derivative of {name} by each of its arguments, {len(one.arguments)}"
        raise refusal(cell.kind.declaration, place(given), expected, len(slopes))
    return [(part, product(gradient, slope)) for part, slope in zip(one.arguments, slopes, strict=True)]
