"""The activated gates of a cell, from what a training forward saves for the gradient.

A slot of the gate buffer holds what the gradient reads: often the activated gate, but also its pre-activation, or some
other value in the slot of a gate that is no longer read. Which value is a gate, and what each slot holds, is read from
the equations as expressions; equal expressions are one object.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.errors import message
from rnnkit_kernels.cells.derivation import Derivation
from rnnkit_kernels.cells.expressions import expression, in_order, rebuilt
from rnnkit_kernels.cells.functions import fma, mean
from rnnkit_kernels.cells.loops import Value, loops_of
from rnnkit_kernels.cells.reading import read_stage
from rnnkit_kernels.cells.rules import CellError
from rnnkit_kernels.cells.writing import Slots

Expression = Any  # `rnnkit_kernels.cells.expressions.Expression`; the kernels have no annotations

_FREE, _AFFINE, _BEYOND = range(3)  # how an expression depends on a gate's pre-activation
_LEAVES = "const", "field", "flag", "read"
_OPERATORS: dict[Any, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow,
    "neg": operator.neg, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "if": np.where,
    fma: lambda a, b, c: a * b + c,
}  # fmt: skip


class _Equations(NamedTuple):
    """The equations of a cell.

    Attributes
    ----------
    inputs : dict of str to Value
        What a step reads, by name.
    final : dict of str to Expression
        What the stages write last under each name.
    ends : set of Expression
        h and the states: what is made of them is not made of a gate.
    hints : dict of Expression to str
        The variable of a stage to which an expression was first assigned.
    """

    inputs: dict[str, Value]
    final: dict[str, Expression]
    ends: set[Expression]
    hints: dict[Expression, str]


class _Refused(Exception):
    """A gate that cannot be given, and why: what it must be, what it is, and the cure."""


def joined_gates(cell: Any) -> dict[str, tuple[str, ...]]:
    """Return the entries of a cell's activated gates, and which gates enter the same function, in order."""
    return _recipe(type(cell))[2]


def activated_gates(
    cell: Any, slot: Callable[[int], np.ndarray], names: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the activated gates of a cell, in the order of its gates.

    Parameters
    ----------
    cell : cell
        With its parameters.
    slot : callable
        Returns a copy of what forward has left in a slot of the gate buffer, given its number.
    names : sequence of str, optional
        The entries to return. None: all that can be computed from the slots.

    Returns
    -------
    dict of str to ndarray
        New arrays of the shape and dtype of slots. Gates that enter one function together are one entry, under the name
        of the first.

    Raises
    ------
    ValueError
        A gate of these names, or each gate, cannot be computed from the slots; or there is none of a name.
    """
    kind: Any = type(cell)
    gates, saved, joined = _recipe(kind)
    refused: list[ValueError] = []
    found: dict[str, np.ndarray] = {}
    for name in gates if names is None else names or [None]:
        try:
            gate = gates[name] if name in gates else _unknown(name, joined)
            if isinstance(gate, _Refused):
                raise gate
            found[name] = _value(gate, cell, saved, slot)
        except _Refused as error:
            where = f"the gate {name} of {kind.declaration.name}" if name in gates else "names"
            refused.append(ValueError(message("gates", where, *error.args)))
    if refused and (names is not None or not found):
        raise refused[0]
    return found


def _unknown(name: Any, joined: dict[str, tuple[str, ...]]) -> _Refused:
    """Return why there is no entry of a name."""
    for owner, members in joined.items():
        if name in members:
            return _Refused("name an entry", repr(name), f'it enters one function with "{owner}": ask for that')
    known = ", ".join(f'"{owner}"' for owner in joined)
    return _Refused(f"be some of {known}", "none" if name is None else repr(name))


@lru_cache(64)
def _recipe(kind: Any) -> tuple[dict[str, Any], dict[Expression, int], dict[str, tuple[str, ...]]]:
    """Return the expression of each activated gate, or why there is none; the slot of each saved expression; and the
    gates that each activated one is made of."""
    declaration: Any = kind.declaration
    numbers = {name: number for number, name in enumerate(declaration.slots)}
    written = {name for stage in declaration.stages if not stage.is_gradient for name in stage.writes}
    try:
        if declaration.derivation_version is None:
            inputs = loops_of(kind, {})[1]
            equations, saved = _read(kind, inputs), {}
            saved = {one: numbers[name] for name, one in equations.final.items() if name in numbers}
        else:
            twin = type(declaration.name, (kind,), {"__slots__": (), "declaration": declaration.as_written})
            derivation = Derivation(twin)
            equations, saved = _read(twin, derivation.step_inputs), _saved(derivation, numbers)
    except CellError:  # a gradient by hand may belong to equations that cannot be read
        read = {name: expression("read", Value(name, "slot")) for name in written & {*numbers}}
        refused = _Refused("be written by a stage under this name", "equations that cannot be read")
        gates = {gate.name: read.get(gate.name, refused) for gate in declaration.gates}
        return gates, {one: numbers[name] for name, one in read.items()}, {name: (name,) for name in gates}
    for name, value in equations.inputs.items():
        if name in numbers and name not in written:
            saved.setdefault(expression("read", value), numbers[name])
    gates, joined = _gates(declaration, equations)
    return gates, saved, joined


def _read(kind: Any, inputs: dict[str, Value]) -> _Equations:
    """Read the forward stages of a cell."""
    declaration = kind.declaration
    hints: dict[Expression, str] = {}
    known, ends = {name: expression("read", value) for name, value in inputs.items()}, set()
    final: dict[str, Expression] = {}
    for stage in declaration.equations:
        if not stage.is_gradient:
            found = read_stage(kind, stage, [known[name] for name in stage.reads], hints)
            final |= dict(zip(stage.writes, found, strict=True))
            known |= final
            ends |= {one for name, one in final.items() if name in ("h", *declaration.states)}
    return _Equations(inputs, final, ends, hints)


def _saved(derivation: Derivation, numbers: dict[str, int]) -> dict[Expression, int]:
    """Return the slots of the values that a derived gradient saves, each expressed by what the step reads."""

    def inner(one: Expression) -> Expression | None:
        value = one.arguments[0] if one.op == "read" else None
        if value is None or value.expression is None:
            return None
        return expression(mean, value.expression) if value.kind == "mean" else value.expression

    slots, values = Slots(derivation), [*derivation.saved]
    made = rebuilt([derivation.saved[value] for value in values], lambda one: None, inner)
    return {one: numbers[slots.of[value]] for value, one in zip(values, made, strict=True)}


def _gates(declaration: Any, equations: _Equations) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return the expression of each activated gate, or why there is none, and the gates it is made of. Of gates with
    the same one, only that which has it by its name is in the result, or the first."""
    found: dict[str, Any] = {}
    by_name: dict[str, bool] = {}
    for gate in declaration.gates:
        try:
            found[gate.name], by_name[gate.name] = _activated(gate.name, equations)
        except _Refused as error:
            found[gate.name], by_name[gate.name] = error, False

    def owner(one: Any) -> str:
        return max((name for name in found if found[name] is one), key=by_name.__getitem__)

    gates = {name: one for name, one in found.items() if name == owner(one)}
    return gates, {name: tuple(other for other in found if found[other] is one) for name, one in gates.items()}


def _activated(name: str, equations: _Equations) -> tuple[Expression, bool]:
    """Return the expression of an activated gate, and whether the equations have it under the gate's name.

    It is what they assign to this name last, if that is not affine in the pre-activation and has no side input or
    random number in it. Else it is the first function that they apply to the pre-activation; else that itself.
    """
    named = _named(name, equations)
    if named:
        return named[-1], True
    start, written = expression("read", equations.inputs[name]), equations.final.get(name)
    degrees = _degrees(start, equations)
    firsts = [one for one in degrees if degrees[one] == _BEYOND and _takes_affine(one, degrees)]
    if not firsts:
        return written or start, written is not None
    if len(firsts) > 1:  # a function of the pre-activation alone, with all others in it; or that applied to it directly
        whole = [one for one in firsts if _reads(one) == {start} and {*firsts} <= {*in_order([one])}]
        direct = [one for one in firsts if _arguments(one) == {start}]
        firsts = whole or (direct if all(map(_is_call, firsts)) else firsts)
    if len(firsts) != 1 or any(degrees.get(one) == _AFFINE for one in equations.final.values()):
        cure = f"assign the activated gate to the name {name} in its equations"
        raise _Refused("be one function of its pre-activation", "several uses of that", cure)
    return firsts[0], False


def _named(name: str, equations: _Equations) -> list[Expression]:
    """Return the functions of a gate's pre-activation that the equations have under the gate's name, in order."""
    degrees = _degrees(expression("read", equations.inputs[name]), equations)
    written = equations.final.get(name)
    if written is not None and degrees[written] == _BEYOND:
        return [written]
    own = [one for one in degrees if degrees[one] == _BEYOND and equations.hints.get(one) == name]
    drawn = "noise", "given"
    return [one for one in own if not any(part.arguments[0].kind in drawn for part in _reads(one))]


def _reads(one: Expression) -> set[Expression]:
    return {part for part in in_order([one]) if part.op == "read"}


def _arguments(one: Expression) -> set[Expression]:
    return {part for part in one.operands if part.op != "field"}


def _is_call(one: Expression) -> bool:
    return callable(one.op) and one.op is not fma


def _takes_affine(one: Expression, degrees: dict[Expression, int]) -> bool:
    return any(degrees[part] == _AFFINE for part in one.operands)


def _degrees(start: Expression, equations: _Equations) -> dict[Expression, int]:
    """Return how each expression, after its operands, depends on a pre-activation other than through states and
    means."""
    found: dict[Expression, int] = {}
    waiting = list(equations.final.values())
    while waiting:
        one = waiting[-1]
        parts = [] if one.op is mean else one.operands
        missing = [part for part in parts if part not in found] if one not in found else []
        waiting.extend(missing)
        if not missing:
            known = [_FREE if part in equations.ends else found[part] for part in parts]
            found[waiting.pop()] = _AFFINE if one is start else _degree(one, known)
    return found


def _degree(one: Expression, parts: list[int]) -> int:
    highest = max(parts, default=_FREE)
    if one.op in _LEAVES or one.op is mean:
        return _FREE
    if highest != _AFFINE:
        return highest
    if one.op in ("+", "-", "neg", "if"):  # a condition that depends on it is not affine
        return _AFFINE
    free = {"*": parts, fma: parts[:2], "/": parts[1:]}.get(one.op, ())  # one factor, or the divisor, is free of it
    return _AFFINE if _FREE in free else _BEYOND


def _value(one: Expression, cell: Any, saved: dict[Expression, int], slot: Callable[[int], np.ndarray]) -> Any:
    """Compute an expression from the slots."""
    if one in saved:
        return slot(saved[one])
    if one.op == "const":
        return one.arguments[0]
    if one.op in ("field", "flag"):
        return getattr(cell, one.arguments[0])
    if one.op == "read" or one.op is mean:
        source = "a mean" if one.op is mean else one.arguments[0].name
        raise _Refused("be computed from what forward saves", f"one that depends on {source}, which it does not save")
    values = [_value(part, cell, saved, slot) for part in one.operands]
    return _OPERATORS[one.op](*values) if one.op in _OPERATORS else _applied(one.op, values)


def _applied(function: Callable[..., float], values: list[Any]) -> Any:
    """Apply a function of numbers to arrays of one shape, element by element."""
    arrays = [one for one in values if isinstance(one, np.ndarray)]
    if not arrays:
        return function(*values)
    found = np.empty_like(arrays[0])
    for place in np.ndindex(found.shape):
        found[place] = function(*(float(one[place]) if isinstance(one, np.ndarray) else one for one in values))
    return found
