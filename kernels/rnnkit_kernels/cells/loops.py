"""Splits the stages of a cell, read as expressions, into loops over the units.

A loop ends where a slow function depends on another slow one: a loop with a long dependency chain is latency-bound
(split, the GRU takes 0.78 of the time, the LSTM 0.93, its gradient 0.78; Zen 3). Reading a mean over the units of a row
starts a new phase, since a mean needs all units. The cuts depend only on the equations.
"""

from .expressions import ONE, expression, in_order, rebuilt
from .functions import fma, mean
from .reading import read_stage

_COSTS = {fma: 1, abs: 1, min: 1, max: 1, "/": 4, "const": 0, "field": 0, "flag": 0, "read": 0, "gradient": 0}
_SLOW = 16  # operations: cost of exp, and of functions built on it
_MAX_RECOMPUTE_LOOP = 4  # operations: a value that costs more is stored for the next loop


class Value:
    """A value per unit, stored in memory between loops.

    Attributes
    ----------
    name : str or None
        Its name in the cell; None for temporaries.
    kind : str
        The array that holds it: "slot", "state", "hidden", "vector", "noise" or "given" (a side input). A "mean" and a
        "scalar" are shared by all units of a row.
    loop : int
        Number of the loop that writes it, -1 for an input of the step.
    expression : Expression or None
        What the loop computes (for a mean, its terms); None for an input of the step.
    """

    def __init__(self, name, kind, loop=-1, expression=None):
        self.name, self.kind, self.loop, self.expression = name, kind, loop, expression

    def __repr__(self):
        return f"{self.name}@{self.loop}"


class Loop:
    """One loop over the units: a part of a stage, the values that it writes, and its phase. `declared` is the phase of
    the stage before phases are split at means."""

    def __init__(self, name, phase, declared, function, values):
        self.name, self.phase, self.declared, self.function, self.values = name, phase, declared, function, values

    def read(self):
        """Return the values that it reads, in order."""
        parts = in_order([value.expression for value in self.values])
        return [part.arguments[0] for part in parts if part.op == "read"]


def cost(one):
    """Return the operations that an expression takes, without its operands."""
    if one.op is not mean and one.is_uniform:
        return 0
    if one.op == "**":
        return 1 if one.arguments[1].op == "const" and isinstance(one.arguments[1].arguments[0], int) else _SLOW
    return _COSTS.get(one.op, 1 if isinstance(one.op, str) else _SLOW)


def loops_of(kind, hints):
    """Return the loops of a cell's forward stages, and the inputs of a step by name. Raises CellError."""
    declaration, loops = kind.declaration, []
    kinds = {gate.name: "slot" for gate in declaration.gates}
    kinds |= {gate.apart: "slot" for gate in declaration.gates if gate.apart}
    kinds |= {f"{state}_prev": "state" for state in declaration.states}
    kinds |= {one.name: "scalar" if one in declaration.scalars else "vector" for one in declaration.vectors}
    kinds |= {one.name: "given" for one in declaration.inputs} | {one.name: "noise" for one in declaration.noises}
    step_inputs = {name: Value(name, value_kind) for name, value_kind in (kinds | {"h_prev": "hidden"}).items()}
    now, last = dict(step_inputs), -1
    slots = declaration.slots[: len(declaration.slots) - len(declaration.extra_slots)]
    stored = {*declaration.states, "h", *declaration.sources, *slots}
    for number, phase in enumerate(declaration.phases):
        last += 1
        for stage in phase.forward:
            given = [expression("read", now[name]) for name in stage.reads]
            found = dict(zip(stage.writes, read_stage(kind, stage, given, hints), strict=True))
            bare = {name: one for name, one in found.items() if one.op is mean and name in stored}
            found |= {name: expression("*", ONE, one) for name, one in bare.items()}
            rewritten = {name for name in stage.writes if name in now and name in (*declaration.states, "h")}
            first = last
            for part, (after, values) in enumerate(_cut(declaration, found, rewritten, len(loops), hints)):
                own = stage.function.__name__ if stage.function.__name__.isidentifier() else "stage"  # or a lambda
                own += f"_{part + 1}" if part else ""
                last = first + after
                loops.append(Loop(own, last, number, stage.function, values))
                now |= {value.name: value for value in values if value.name is not None}
    return loops, step_inputs


def _places_of(order):
    """Return for each expression its phase, from 0, and its depth in slow functions within that phase."""
    found = {}
    for one in order:
        phase = max((found[part][0] + (part.op is mean) for part in one.operands), default=0)
        here = (found[part][1] for part in one.operands if part.op is not mean and found[part][0] == phase)
        found[one] = phase, max(here, default=0) + (one.op is not mean and cost(one) >= _SLOW)
    return found


def _cut(declaration, outputs, rewritten, first, hints):
    """Split a stage, given what it writes by name, into loops: a list of (phases after the stage's first, values).

    Slow functions, means and outputs are computed as early as possible; later phases wait for means. A state that the
    stage overwrites is written last, because later loops may read the old one. All else is computed in the first loop
    that uses it.
    """
    order = in_order(list(outputs.values()))
    places, users = _places_of(order), {one: [] for one in order}
    for one in order:
        for part in one.operands:
            users[part].append(one)
    kinds = sorted({(phase, number) for phase, depth in places.values() for number in range(max(depth, 1))})
    count = len(kinds)
    written = {one for name, one in outputs.items() if name not in rewritten}
    at = {}
    for one in reversed(order):
        phase, depth = places[one]
        soonest = kinds.index((phase, max(depth - 1, 0)))
        early = cost(one) >= _SLOW or one in written
        at[one] = soonest if early else min((at[user] for user in users[one]), default=count - 1)
    wanted = [[] for _ in range(count)]  # for each loop: (name or None, expression)
    for name, one in outputs.items():
        wanted[count - 1 if name in rewritten else at[one]].append((name, one))
    for number in reversed(range(1, count)):
        for one in _from_before([one for _, one in wanted[number]], at, number, written):
            if all(one is not other for _, other in wanted[at[one]]):
                wanted[at[one]].append((None, one))
    stored, loops = {}, []
    for number, own in enumerate(wanted):
        made = rebuilt([one for _, one in own], stored.get)
        values = [_value(declaration, name, first + number, one) for (name, _), one in zip(own, made, strict=True)]
        stored |= {one: expression("read", value) for (_, one), value in zip(own, values, strict=True)}
        hints |= {stored[one]: hints[one] for _, one in own if one.op is mean and one in hints}
        loops.append((kinds[number][0], values))
    return loops


def _value(declaration, name, loop, one):
    if one.op is mean:
        return Value(name, "mean", loop, one.arguments[0])
    return Value(name, _place(declaration, name), loop, one)


def _place(declaration, name):
    return "state" if name in declaration.states else "hidden" if name == "h" else "slot"


def _from_before(outputs, at, number, written):
    """Return the values that a loop needs from earlier loops, except those recomputed or stored anyway."""
    found, seen, waiting = [], set(), list(outputs)
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        is_expensive = cost(one) >= _SLOW or operations(one, written) > _MAX_RECOMPUTE_LOOP
        if at[one] < number and one not in written and not one.is_condition and is_expensive:
            found.append(one)
        elif at[one] == number or one not in written:
            waiting.extend(one.operands)
    return found


def operations(one, there):
    """Return the operations that an expression takes if its parts in `there` and all slow ones are available."""
    found, waiting = {}, [one]
    while waiting:
        part = waiting.pop()
        if part not in found and part not in there and cost(part) < _SLOW:
            found[part] = cost(part)
            waiting.extend(part.operands)
    return sum(found.values())
