"""check_cell: compare a cell's gradients with central finite differences, one variable at a time, and the loops that
the engine derived from its equations with the equations themselves, Python functions called on numbers.

Each variable holds one number per unit. There is one unit, or three if the cell takes means over units.
"""

from __future__ import annotations

import math
import operator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call import checks
from rnnkit.descriptor.modes import checked_cell
from rnnkit_kernels.cells.cell import derived
from rnnkit_kernels.cells.rules import CellError
from rnnkit_kernels.cells.running import is_of_numbers, run

_TRIALS = 32
_STEP = 6e-6  # the cube root of the float64 machine epsilon balances truncation and rounding
_TOLERANCE = 1e-7  # of |gradient - difference|, relative to the magnitude of the loss and of the difference
_ROUNDING = 1e-6  # of values: constants may be float32 numbers, whose products Python rounds to float32
_RECURRENT_WEIGHT = 0.7  # stands in for R where it multiplies the output of a stage
_UNITS = 3  # if the cell takes means over units
_Values = dict[str, list[float]]  # name of a variable -> its number for each unit
_KINK = 1e-5  # a trial is skipped if doubling the step changes the difference by more: it is near a kink


class CheckRow(NamedTuple):
    """One row of the table: a variable, and its trial with the largest error."""

    name: str
    kind: str
    trials: int
    gradient: float
    difference: float
    error: float
    derived: float | None = None  # for a hand-written gradient: the one derived from the equations

    @property
    def right(self) -> bool:
        """Whether gradient and difference agree in every trial. False for a NaN, and if every trial was skipped."""
        return self.trials > 0 and self.error <= 1


class CheckReport(tuple):  # type: ignore[type-arg]
    """The result of `check_cell`: a tuple of rows that prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        has_derived = any(row.derived is not None for row in self)
        names = "gradient", *(["derived"] if has_derived else []), "difference"
        titles = {"difference": "finite diff."}
        lines = [f"{'wrt':14} {'kind':8} {'trials':>6}" + "".join(f" {titles.get(name, name):>15}" for name in names)]
        for row in self:
            numbers = "".join(f" {getattr(row, name):15.8g}" for name in names)
            lines.append(f"{row.name:14} {row.kind:8} {row.trials:6}{numbers}" + ("" if row.right else "  wrong"))
        return "\n".join(lines)


def check_cell(cell: Any, seed: int = 0) -> CheckReport:
    """Check the gradients of a cell against central finite differences, in float64.

    The check runs 32 trials with random inputs. In each it varies one variable at a time. It also compares the values
    of h, the states and what R multiplies with those of your own stages, called as Python functions.

    Parameters
    ----------
    cell : cell
        The cell with its parameters, or its class if all parameters have defaults.
    seed : int
        Seed of the random inputs and output gradients, at least 0.

    Returns
    -------
    CheckReport
        A tuple that prints as a table. It has one row for each gate, separate recurrent product, state, vector, scalar
        and side input, and for h_prev. A row shows the cell's gradient and the finite difference in the trial with the
        largest error. If the gradient is hand-written, the row also shows the gradient derived from the equations.

    Raises
    ------
    CellError
        A gradient is wrong; the message names the wrong ones and contains the table. Or a stage fails on the inputs of
        a trial, for example math.log of a negative number; the message gives the stage and the inputs. Or a value
        differs from what the stages return as Python functions, for example because a constant was reassigned after
        the class was defined; the message names the value.
    TypeError, ValueError
        `cell` is not a cell, its parameters are invalid, or `seed` is not an int of at least 0.

    Notes
    -----
    No kernel is compiled. A trial near a point without a derivative, such as the kink of a ReLU, is skipped.

    Examples
    --------
    >>> from rnnkit_kernels.cells.vanilla import Tanh
    >>> check_cell(Tanh)
    wrt            kind     trials        gradient         derived    finite diff.
    a              gate         32       1.3441343       1.3441343       1.3441343
    """
    cell = checked_cell("check_cell", "cell", cell)
    checks.seed("check_cell", seed)
    declaration, other = cell.declaration, _derived(cell)
    kinds, rng, units = _kinds(declaration), np.random.default_rng(seed), _UNITS if declaration.means else 1
    worst = {name: CheckRow(name, kind, 0, math.nan, math.nan, 0.0) for name, kind in kinds.items()}
    for _ in range(_TRIALS):
        given = dict(zip(kinds, rng.normal(size=(len(kinds), units)).tolist(), strict=True))
        given |= {scalar.name: given[scalar.name][:1] * units for scalar in declaration.scalars}
        drawn = rng.normal(size=(len(declaration.noises), units)).tolist() if declaration.noises else []
        given |= {noise.name: own for noise, own in zip(declaration.noises, drawn, strict=True)}
        outputs = ["h", *declaration.states]
        weights = dict(zip(outputs, rng.normal(size=(len(outputs), units)).tolist(), strict=True))
        _check_values(cell, {name: own[:1] for name, own in given.items()})
        found = _gradients(declaration, cell, _step(declaration, cell, given), weights)
        derived = _gradients(other, cell, _step(other, cell, given), weights) if other else {}
        for name in kinds:
            pair = _gradient_by(found, name, kinds), _gradient_by(derived, name, kinds) if other else None
            worst[name] = _compared(cell, worst[name], given, weights, *pair)
    table = CheckReport(worst.values())
    wrong = [row.name for row in table if not row.right]
    if wrong:
        raise CellError(f"check_cell: {cell!r} has wrong gradients d{', d'.join(wrong)}\n{table!r}")
    return table


def _kinds(declaration: Any) -> dict[str, str]:
    """Return the variables to differentiate by, and the kind of each."""
    kinds = {gate.name: "gate" for gate in declaration.gates}
    kinds |= {gate.apart: "product" for gate in declaration.gates if gate.apart is not None}
    kinds |= {f"{state}_prev": "state" for state in declaration.states}
    kinds |= {vector.name: "scalar" if vector in declaration.scalars else "vector" for vector in declaration.vectors}
    kinds |= {one.name: "input" for one in declaration.inputs}
    return kinds | ({"h_prev": "hidden"} if declaration.reads_hidden() else {})


def _derived(cell: Any) -> Any:
    """Return the declaration with the derived gradient, for a cell with a hand-written one; else None."""
    if cell.declaration.derivation_version is None:
        with suppress(CellError):
            return derived(type(cell))
    return None


def _gradient_by(found: _Values, name: str, kinds: dict[str, str]) -> float:
    """Return the gradient by a variable of the first unit, or by a scalar: the sum over all units."""
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
    """Return the values of all variables after the step."""
    values = {"h_prev": [0.0] * len(next(iter(given.values())))} | given
    for phase in declaration.phases:
        # The inputs of the trial already contain the products of the first phase.
        for product in phase.products if phase is not declaration.phases[0] else ():
            for name in declaration.names_of(product):
                pairs = zip(values[name], values[product.source], strict=True)
                values[name] = [gate + _RECURRENT_WEIGHT * source for gate, source in pairs]
        _run(declaration, cell, values, phase.forward)
    return values


def _check_values(cell: Any, given: _Values) -> None:
    """Raise CellError unless the loops that kernels run compute, for one unit, what the equations do as they are
    written: called as Python functions, of NumPy's numbers, which divide by 0 as kernels do."""
    declaration = cell.declaration
    if declaration.as_written is None:
        return
    with np.errstate(all="ignore"):
        try:
            numbers = {name: [np.float64(one) for one in own] for name, own in given.items()}
            wanted = _step(declaration.as_written, cell, numbers)
        except CellError as error:
            if is_of_numbers(error):  # there is no value to compare with
                return
            raise
        found = _step(declaration, cell, given)
    for name in dict.fromkeys(("h", *declaration.states, *declaration.sources)):
        [value], [own] = found[name], wanted[name]
        if not math.isclose(value, own, rel_tol=_ROUNDING, abs_tol=_ROUNDING) and not (value != value and own != own):
            inputs = ", ".join(f"{one}={numbers[0]:.6g}" for one, numbers in given.items())
            problem = f"computes {name}={value:.8g} where its equations, called as Python functions, return {own:.8g}"
            cure = "define the class again if a constant or a function that it uses has changed, else report this"
            raise CellError(f"check_cell: {cell!r} {problem} ({inputs}); {cure}")


def _gradients(declaration: Any, cell: Any, values: _Values, weights: _Values) -> _Values:
    """Return the gradients by all inputs of the step."""
    found = values | {f"d{name}": weight for name, weight in weights.items()}
    for phase in reversed(declaration.phases):
        _run(declaration, cell, found, phase.gradient)
        for product in phase.products if phase is not declaration.phases[0] else ():
            source, names = f"d{product.source}", declaration.names_of(product)
            columns = zip(*(found[f"d{name}"] for name in names), strict=True)
            through = [_RECURRENT_WEIGHT * sum(units) for units in columns]
            before = found[source] if declaration.adds_to_source(product) else [0.0] * len(through)
            found[source] = [one + other for one, other in zip(before, through, strict=True)]
    return found


def _compared(
    cell: Any, row: CheckRow, given: _Values, weights: _Values, gradient: float, derived: float | None
) -> CheckRow:
    """Return the row, updated if the error of this trial is larger."""

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
    error = math.inf if any(map(math.isnan, distances)) else max(distances) / (_TOLERANCE * size + curved)
    if row.trials and error <= row.error:
        return row._replace(trials=row.trials + 1)
    return row._replace(trials=row.trials + 1, gradient=gradient, difference=difference, error=error, derived=derived)
