"""Runs the stages of a cell as Python functions, without compiling them."""

import math
from itertools import product
from numbers import Real
from types import FunctionType

import numpy as np

from .activations import Activation, Sigmoid
from .rules import CellError, cell_error, cell_problem, describe_stage, parameter_types

_PROBES = 0.4, -1.3, 2.6  # inputs that every stage is tried on
_OF_NUMBERS = ArithmeticError, ValueError  # errors that a correct equation may raise on some inputs


def with_defaults(kind, **given):
    """Return a cell with these parameters, and sample values for all others that have no default."""
    own = {bool: False, int: 1, float: 0.5, Activation: Sigmoid()}
    defaults = {name: own[one] for name, one in parameter_types(kind).items()} | kind._field_defaults
    return kind(**defaults | given)


def probe(kind, stage):
    """Run a stage on sample inputs; raise CellError if it fails or returns something else than its numbers."""
    flags = [name for name, one in parameter_types(kind).items() if one is bool]
    for values in product((False, True), repeat=min(len(flags), 4)):
        cell = with_defaults(kind, **dict(zip(flags, values, strict=False)))
        for shift in range(len(_PROBES)):
            numbers = [_PROBES[(shift + i) % len(_PROBES)] for i in range(len(stage.reads))]
            try:
                run(kind.declaration, stage, cell, numbers)
            except CellError as error:
                if not is_of_numbers(error):
                    raise


def is_of_numbers(error):
    """Whether a stage failed because of its inputs, as a right equation may, for example a logarithm."""
    return isinstance(error.__cause__, _OF_NUMBERS)


def _quietly(function, cell, numbers):
    """Evaluate a generated loop like compiled code: it also computes what only a branch that is not taken needs, and
    errors of arithmetic become NaN."""

    def quiet(own):
        def call(*arguments):
            try:
                return own(*arguments)
            except _OF_NUMBERS:
                return math.nan

        return call

    space = {name: quiet(value) if callable(value) else value for name, value in function.__globals__.items()}
    with np.errstate(all="ignore"):
        found = FunctionType(function.__code__, space)(cell, *map(np.float64, numbers))
    return tuple(map(float, found)) if isinstance(found, tuple) else float(found)


def run(declaration, stage, cell, numbers):
    """Return a stage's results by name; raise CellError if Python raises, or the results are not its numbers."""
    try:
        found = _quietly(stage.function, cell, numbers) if stage.phase is not None else stage.function(cell, *numbers)
    except Exception as error:
        traceback = error.__traceback__
        while traceback.tb_next is not None and traceback.tb_next.tb_frame.f_code is stage.function.__code__:
            traceback = traceback.tb_next
        line = traceback.tb_lineno if traceback.tb_frame.f_code is stage.function.__code__ else None
        given = "numbers as arguments"
        if isinstance(error, _OF_NUMBERS):
            given = ", ".join(f"{name}={number!r}" for name, number in zip(stage.reads, numbers, strict=True))
        problem = f"fails with {given}: {type(error).__name__}: {error}"
        raise cell_problem(declaration, describe_stage(stage.function, line), problem) from error
    where, expected = describe_stage(stage.function), f"return {len(stage.writes)} numbers ({', '.join(stage.writes)})"
    results = found if isinstance(found, tuple) else (found,)
    if len(results) != len(stage.writes):
        raise cell_error(declaration, where, expected, len(results))
    for name, result in zip(stage.writes, results, strict=True):
        if isinstance(result, bool) or not isinstance(result, Real):
            raise cell_error(declaration, where, expected, f"{type(result).__name__} for {name}")
    return dict(zip(stage.writes, results, strict=True))
