"""check_cell: a cell's gradients against differences of its values, one number at a time.

A name has a number of each unit: of one alone, or of three where the cell takes means over them.
"""

from __future__ import annotations

import math
import operator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call import checks
from rnnkit.descriptor.modes import checked_cell
from rnnkit.errors import message
from rnnkit.kernels.cells.cell import derived
from rnnkit.kernels.cells.rules import CellError, run

_TRIALS = 32
_STEP = 6e-6  # the cube root of the float64 machine epsilon balances truncation and rounding
_BOUND = 1e-7  # of a difference, relative to the size of what it is made of
_R = 0.7  # the recurrent weight of a unit, where R multiplies what a stage wrote
_UNITS = 3  # of a row, where there are means
_Values = dict[str, list[float]]  # of each name those of all units
_KINK = 1e-5  # differences that a step of twice the length changes by so much: there is no derivative nearby


class Row(NamedTuple):
    """One line of the table: what the loss was derived by, and the worst trial."""

    name: str
    kind: str
    trials: int
    gradient: float
    difference: float
    error: float
    derived: float | None = None  # the gradient that follows from the forward equations, of one that is written by hand

    @property
    def right(self) -> bool:
        """Whether gradient and difference agree in every trial; false for a NaN, and where no trial could be used."""
        return self.trials > 0 and self.error <= 1


class Checked(tuple):  # type: ignore[type-arg]
    """The rows of `check_cell`, which print as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        has_derived = any(row.derived is not None for row in self)
        names = "gradient", *(["derived"] if has_derived else []), "difference"
        lines = [f"{'by':14} {'kind':8} {'trials':>6}" + "".join(f" {name:>15}" for name in names)]
        for row in self:
            numbers = "".join(f" {getattr(row, name):15.8g}" for name in names)
            lines.append(f"{row.name:14} {row.kind:8} {row.trials:6}{numbers}" + ("" if row.right else "  wrong"))
        return "\n".join(lines)


def check_cell(cell: Any, seed: int = 0) -> Checked:
    """Compare the gradients of a cell with central differences of its values, in float64, one number at a time.

    Parameters
    ----------
    cell : cell
        With its parameters, or its class where they all have defaults.
    seed : int
        Of the numbers that are drawn: 32 times those of a unit and the gradients by what it computes.

    Returns
    -------
    Checked
        A tuple with a row for each gate, product that is kept apart, state, vector and h_prev: the gradient and the
        difference of the trial in which they are farthest apart, and where the gradient is written by hand that which
        is derived from the forward equations, if they have one. Printed it is a table.

    Raises
    ------
    CellError
        A gradient is not that of the values; the message names those that are wrong, and holds the table. Or a stage
        does not compute with the numbers of a trial, math.log with one below 0 say; the message has both.
    TypeError, ValueError
        `cell` is no cell, or has no such parameters, or `seed` is no int from 0 on.

    Notes
    -----
    No kernel is compiled. Where a cell has no derivative, in the kink of a ReLU say, a trial is left out.

    Examples
    --------
    >>> from rnnkit.kernels.cells.vanilla import Tanh
    >>> check_cell(Tanh)
    by             kind     trials        gradient         derived      difference
    a              gate         32       1.3441343       1.3441343       1.3441343
    """
    cell = checked_cell("check_cell", "cell", cell)
    checks.seed("check_cell", seed)
    declaration, other = cell.declaration, _derived(cell)
    kinds, rng, units = _kinds(declaration), np.random.default_rng(seed), _UNITS if declaration.means else 1
    worst = {name: Row(name, kind, 0, math.nan, math.nan, 0.0) for name, kind in kinds.items()}
    for _ in range(_TRIALS):
        given = dict(zip(kinds, rng.normal(size=(len(kinds), units)).tolist(), strict=True))
        given |= {scalar.name: given[scalar.name][:1] * units for scalar in declaration.scalars}
        drawn = rng.normal(size=(len(declaration.noises), units)).tolist() if declaration.noises else []
        given |= {noise.name: own for noise, own in zip(declaration.noises, drawn, strict=True)}
        outputs = ["h", *declaration.states]
        weights = dict(zip(outputs, rng.normal(size=(len(outputs), units)).tolist(), strict=True))
        found = _gradients(declaration, cell, _step(declaration, cell, given), weights)
        derived = _gradients(other, cell, _step(other, cell, given), weights) if other else {}
        for name in kinds:
            pair = _gradient_by(found, name, kinds), _gradient_by(derived, name, kinds) if other else None
            worst[name] = _compared(cell, worst[name], given, weights, *pair)
    table = Checked(worst.values())
    wrong = [row.name for row in table if not row.right]
    if wrong:
        got = f"another d{', d'.join(wrong)}\n{table!r}"
        raise CellError(message("check_cell", f"the gradients of {cell!r}", "be those of its values", got))
    return table


def _kinds(declaration: Any) -> dict[str, str]:
    """What the loss is derived by, and what each is."""
    kinds = {gate.name: "gate" for gate in declaration.gates}
    kinds |= {gate.apart: "product" for gate in declaration.gates if gate.apart is not None}
    kinds |= {f"{state}_prev": "state" for state in declaration.states}
    kinds |= {vector.name: "scalar" if vector in declaration.scalars else "vector" for vector in declaration.vectors}
    kinds |= {one.name: "input" for one in declaration.inputs}
    return kinds | ({"h_prev": "hidden"} if declaration.reads_hidden() else {})


def _derived(cell: Any) -> Any:
    """The declaration with the gradient that is derived, of a cell that has another one; None without."""
    if cell.declaration.derivation_version is None:
        with suppress(CellError):
            return derived(type(cell))
    return None


def _gradient_by(found: _Values, name: str, kinds: dict[str, str]) -> float:
    """That by a name of the first unit, or by a scalar, which all have."""
    own = found.get(f"d{name}", [0.0])
    return sum(own) if kinds[name] == "scalar" else own[0]


def _run(declaration: Any, cell: Any, values: _Values, stages: Any) -> None:
    summed = {f"d{vector.name}" for vector in declaration.vectors}
    means = *declaration.means, *declaration.gradient_means
    for stage in stages:
        rows = zip(*(values[name] for name in stage.reads), strict=True)
        found = [run(declaration, stage, cell, list(row)) for row in rows]
        for name in stage.writes:
            own = [unit[name] for unit in found]
            if name in summed:
                own = [one + before for one, before in zip(own, values.get(name, [0.0] * len(own)), strict=True)]
            values[name] = [sum(own) / len(own)] * len(own) if name in means else own


def _step(declaration: Any, cell: Any, given: _Values) -> _Values:
    """What all names hold behind the step."""
    values = {"h_prev": [0.0] * len(next(iter(given.values())))} | given
    for phase in declaration.phases:
        # Those of the first are in what is given.
        for product in phase.products if phase is not declaration.phases[0] else ():
            for name in declaration.names_of(product):
                pairs = zip(values[name], values[product.source], strict=True)
                values[name] = [gate + _R * source for gate, source in pairs]
        _run(declaration, cell, values, phase.forward)
    return values


def _gradients(declaration: Any, cell: Any, values: _Values, weights: _Values) -> _Values:
    """The gradients by all that the step began from."""
    found = values | {f"d{name}": weight for name, weight in weights.items()}
    for phase in reversed(declaration.phases):
        _run(declaration, cell, found, phase.gradient)
        for product in phase.products if phase is not declaration.phases[0] else ():
            source, names = f"d{product.source}", declaration.names_of(product)
            through = [_R * sum(units) for units in zip(*(found[f"d{name}"] for name in names), strict=True)]
            before = found[source] if declaration.adds_to_source(product) else [0.0] * len(through)
            found[source] = [one + other for one, other in zip(before, through, strict=True)]
    return found


def _compared(
    cell: Any, row: Row, given: _Values, weights: _Values, gradient: float, derived: float | None
) -> Row:
    """The row, or that of this trial where it is worse."""

    def loss(distance: float) -> float:
        moved = [one + distance for one in given[row.name]]
        own = moved if row.kind == "scalar" else [moved[0], *given[row.name][1:]]
        after = _step(cell.declaration, cell, given | {row.name: own})
        return sum(math.fsum(map(operator.mul, weight, after[output])) for output, weight in weights.items())

    difference, wider = ((loss(step) - loss(-step)) / (2 * step) for step in (_STEP, 2 * _STEP))
    size, curved = 1 + abs(difference) + abs(loss(0.0)), abs(wider - difference)
    if curved > _KINK * size:
        return row
    distances = [abs(one - difference) for one in (gradient, derived) if one is not None]
    error = math.inf if any(map(math.isnan, distances)) else max(distances) / (_BOUND * size + curved)
    if row.trials and error <= row.error:
        return row._replace(trials=row.trials + 1)
    return row._replace(trials=row.trials + 1, gradient=gradient, difference=difference, error=error, derived=derived)
