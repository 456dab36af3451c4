"""The stages of a cell, read as expressions and cut into loops over the units.

A loop ends where a function has to wait for another slow one: few units at a time are on their way through a core, and
in one loop the time of a unit is that of the whole chain (GRU 0.78, LSTM 0.93, its gradient 0.78 of the time; Zen 3).
A phase ends where one reads a mean over the units of the row, which is there when all of them are done. Where cuts are
follows from the equations alone.
"""

from .expressions import ONE, expression, in_order, rebuilt
from .functions import fma, mean
from .reading import read_stage

_COSTS = {fma: 1, abs: 1, min: 1, max: 1, "/": 4, "const": 0, "field": 0, "flag": 0, "read": 0, "gradient": 0}
_SLOW = 16  # operations that the exponential, and what is made of it, takes
_AGAIN = 4  # operations that rather than stored for the next loop are computed again


class Value:
    """A number of each unit that stands in memory between loops.

    Attributes
    ----------
    name : str or None
        What the cell calls it; None for one that the engine keeps.
    kind : str
        "slot", "state", "hidden", "vector", "noise", or "given", a side input: which array it stands in. A "mean" and a
        "scalar" are numbers that all units of a row have in common.
    loop : int
        The number of the loop that writes it, -1 for what a step begins with.
    made_of : Expression or None
        What the loop computes, of a mean its terms; None for what a step begins with.
    """

    def __init__(self, name, kind, loop=-1, made_of=None):
        self.name, self.kind, self.loop, self.made_of = name, kind, loop, made_of

    def __repr__(self):
        return f"{self.name}@{self.loop}"


class Loop:
    """One loop over the units: a part of a stage, the values that it writes, and its phase; `declared` is that of the
    equations, in which nothing is said of means."""

    def __init__(self, name, phase, declared, function, values):
        self.name, self.phase, self.declared, self.function, self.values = name, phase, declared, function, values

    def read(self):
        """The values that it reads, in their order."""
        parts = in_order([value.made_of for value in self.values])
        return [part.arguments[0] for part in parts if part.op == "read"]


def cost(one):
    """Operations that an expression takes by itself."""
    if one.op is not mean and one.is_of_row:
        return 0
    if one.op == "**":
        return 1 if one.arguments[1].op == "const" and isinstance(one.arguments[1].arguments[0], int) else _SLOW
    return _COSTS.get(one.op, 1 if isinstance(one.op, str) else _SLOW)


def loops_of(kind, hints):
    """The loops of a cell's forward stages, and the values that a step begins with, by name. Raises CellError."""
    declaration, loops = kind.declaration, []
    begun = {gate.name: "slot" for gate in declaration.gates}
    begun |= {gate.apart: "slot" for gate in declaration.gates if gate.apart}
    begun |= {f"{state}_prev": "state" for state in declaration.states}
    begun |= {one.name: "scalar" if one in declaration.scalars else "vector" for one in declaration.vectors}
    begun |= {one.name: "given" for one in declaration.inputs} | {one.name: "noise" for one in declaration.noises}
    begun = {name: Value(name, where) for name, where in (begun | {"h_prev": "hidden"}).items()}
    now, last = dict(begun), -1
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
    return loops, begun


def _places_of(order):
    """Of each expression the phase, from 0 on, and the slow functions up to its value in that phase."""
    found = {}
    for one in order:
        phase = max((found[part][0] + (part.op is mean) for part in one.operands), default=0)
        here = (found[part][1] for part in one.operands if part.op is not mean and found[part][0] == phase)
        found[one] = phase, max(here, default=0) + (one.op is not mean and cost(one) >= _SLOW)
    return found


def _cut(declaration, outputs, rewritten, first, hints):
    """The loops of a stage, of each how many phases after the stage's first it stands and the values that it writes,
    from what the stage writes by name.

    A slow function comes as early as it can, and so does a mean, for which later phases wait, and what is written, but
    for a state that the stage has read: later loops may read it too. All else stands where it is read.
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
    wanted = [[] for _ in range(count)]  # of each loop (name or None, expression)
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
    """What a loop needs of the loops before it, but for what is computed again or read where it stood."""
    found, seen, waiting = [], set(), list(outputs)
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        is_dear = cost(one) >= _SLOW or operations(one, written) > _AGAIN
        if at[one] < number and one not in written and not one.is_condition and is_dear:
            found.append(one)
        elif at[one] == number or one not in written:
            waiting.extend(one.operands)
    return found


def operations(one, there):
    """Operations that an expression takes where these of its parts are there, and all slow ones."""
    found, waiting = {}, [one]
    while waiting:
        part = waiting.pop()
        if part not in found and part not in there and cost(part) < _SLOW:
            found[part] = cost(part)
            waiting.extend(part.operands)
    return sum(found.values())
