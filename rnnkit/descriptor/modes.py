"""What stands for a network's cell: the name of a mode, or a cell; as an argument, in messages, in files."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from functools import cache
from itertools import count
from numbers import Integral
from typing import Any

import numpy as np

from rnnkit.common.numbers import real_number
from rnnkit.errors import message, wrong_type
from rnnkit.kernels.cells.activations import ACTIVATIONS, POSITIVE, USER_ACTIVATIONS, Activation
from rnnkit.kernels.cells.cell import Stage
from rnnkit.kernels.cells.modes import MODES
from rnnkit.kernels.cells.rules import parameter_types
from rnnkit.kernels.cells.source import code_key, is_shipped, source_of
from rnnkit.kernels.cells.source_0_9 import source_0_9
from rnnkit.kernels.cells.uses import Unresolved


def checked(function: str, value: Any, argument: str = "mode") -> Any:
    """Return a mode's name, or a cell with its parameters, each of its type; raise what is wrong with the argument."""
    listed = " or ".join(f'"{mode}"' for mode in MODES)
    if isinstance(value, str):
        known = next((mode for mode in MODES if mode == value), None)  # a subclass of str only compares like one
        if known is None:
            raise ValueError(message(function, argument, f"be {listed}", repr(value)))
        return known
    return checked_cell(function, argument, value, f"{listed} or a cell")


def checked_cell(function: str, argument: str, value: Any, expected: str = "a cell") -> Any:
    """Return a cell with its parameters, each of its type; raise what is wrong with the argument."""
    kind = value if isinstance(value, type) else type(value)
    if not hasattr(kind, "declaration"):
        raise not_a_cell(function, argument, expected, value)
    if isinstance(value, type):
        missing = [name for name in kind._fields if name not in kind._field_defaults]
        if missing:
            expected, got = f"have its parameters {', '.join(missing)}", f"the class {kind.__name__}"
            raise TypeError(message(function, argument, expected, got, "give an instance of it"))
        value = kind()
    types = parameter_types(kind)
    prefix = f"{argument}, {kind.__name__}'s "
    own = {name: _parameter(function, f"{prefix}{name},", getattr(value, name), types[name]) for name in types}
    for noise in kind.declaration.noises:
        if not 0 <= own[noise.rate] <= 1:
            raise ValueError(message(function, f"{prefix}{noise.rate},", "be in 0..1", own[noise.rate]))
    return kind(**own)


def not_a_cell(function: str, argument: str, expected: str, value: Any) -> TypeError:
    """Return the error that an argument is no cell."""
    kind = value if isinstance(value, type) else type(value)
    if any(isinstance(one, Stage) for one in vars(kind).values()):
        got, cure = f"{kind.__name__} without its decorator", "decorate the class with @rnnkit.cells.cell"
        return TypeError(message(function, argument, f"be {expected}", got, cure))
    return wrong_type(function, argument, expected, value)


def _parameter(function: str, argument: str, value: Any, wanted: type) -> Any:
    if wanted is Activation:
        return _activation(function, argument, value)
    if wanted is bool:
        if not isinstance(value, bool):
            raise wrong_type(function, argument, "a bool", value)
        return value
    number = real_number(function, argument, value, "an int" if wanted is int else "a float")
    if wanted is int:
        if not isinstance(value, Integral):
            raise wrong_type(function, argument, "an int", value)
        return int(value)
    if math.isnan(number):
        raise ValueError(message(function, argument, "be a number", number))
    return number


def _activation(function: str, argument: str, value: Any) -> Any:
    value = value() if isinstance(value, type) and issubclass(value, Activation) else value
    if not isinstance(value, Activation):
        raise wrong_type(function, argument, f"an activation ({', '.join(ACTIVATIONS)})", value)
    for name, number in zip(value._fields, value, strict=True):
        least = 0 if name == "alpha" and isinstance(value, POSITIVE) else -math.inf
        if not least < real_number(function, f"{argument} {name}", number) < math.inf:
            expected = "be finite" if least else "be finite and above 0"
            raise ValueError(message(function, f"{argument} {name}", expected, number))
    return type(value)(*map(float, value))


def check_rounded(function: str, mode: Any, dtype: np.dtype) -> None:
    """Refuse a cell's number that the dtype makes 0 or infinite, which its equations may divide by."""
    for name, value in () if isinstance(mode, str) else mode._asdict().items():
        numbers = value._asdict() if isinstance(value, Activation) else {"": value}
        for own, number in numbers.items():
            with np.errstate(all="ignore"):
                rounded = float(dtype.type(number))
            if rounded != number and (rounded == 0 or math.isinf(rounded)):
                argument = f"mode, {type(mode).__name__}'s {name},{own and ' '}{own}"
                expected = f"be a number that {dtype} does not make {rounded}"
                raise ValueError(message(function, argument, expected, number))


def cell_of(mode: Any, desc: Any) -> Any:
    """The cell that the kernels run, with its parameters."""
    if isinstance(mode, str):
        with np.errstate(over="ignore"):  # a bound beyond the dtype is infinite in it
            return MODES[mode].cell(desc)
    kind, real = type(mode), desc.np_dtype.type
    types = parameter_types(kind)
    given = (getattr(mode, name) for name in kind._fields)
    # Whole numbers too: an int64 in an equation of float32 would make float64 of it.
    of = {bool: bool, int: real, float: real, Activation: lambda one: _compiled(type(one))(*map(real, one))}
    return _compiled(kind)(*(of[types[name]](value) for name, value in zip(kind._fields, given, strict=True)))


@cache
def _compiled(kind: type) -> type:
    """The class of a cell or activation that kernels are compiled for: what computes otherwise never has its name."""
    if is_shipped(kind):
        return kind
    try:
        key = code_key(kind)[:16]
    except Unresolved:
        key = f"of_this_process_{next(_UNRESOLVED)}"
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(f"{kind.__name__}_{key}", (kind,), {"__slots__": (), **names})


_UNRESOLVED = count()


def text_of_mode(mode: Any) -> str:
    """The mode as an argument says it, for a message."""
    return f'mode="{mode}"' if isinstance(mode, str) else f"mode={mode!r}"


def has_option(mode: Any, option: str) -> bool:
    """Whether a mode has one of the options that not every mode has."""
    if isinstance(mode, str):
        return option in MODES[mode].options
    declaration = mode.declaration
    takes_projection = declaration.sources == ("h",) and declaration.heads == 1 and not declaration.reads_hidden()
    return option == "proj_size" and takes_projection


def serialized(mode: Any) -> Any:
    """A mode as it stands in files: its name, or what tells its cell."""
    return _serialized(mode, _saved_source)


def text_in_process(mode: Any) -> str:
    """A text that tells a cell with its parameters from all others of this process, and is the same in others unless
    the source is unknown."""
    return json.dumps(_serialized(mode, _source_in_process))


def _serialized(mode: Any, source: Callable[[type], str | None]) -> Any:
    if isinstance(mode, str):
        return mode
    parameters = {name: _serialized_parameter(value, source) for name, value in mode._asdict().items()}
    return {"cell": type(mode).declaration.name, "source": source(type(mode)), "parameters": parameters}


def _serialized_parameter(parameter: Any, source: Callable[[type], str | None]) -> Any:
    if not isinstance(parameter, Activation):
        return parameter
    name, own = type(parameter).__name__, source(type(parameter))
    return [name, *parameter] if own is None else {"activation": name, "source": own, "numbers": [*parameter]}


def _saved_source(kind: type) -> str | None:
    """The source of a user's cell or activation for a file; None for this package's own.

    Without a source it is "none: why", with a warning: a training run must not end in a refusal to save.
    """
    if is_shipped(kind):
        return None
    try:
        return source_of(kind)
    except Unresolved as error:
        cure = "loading the file will need check_source=False"
        warnings.warn(f"save: {kind.__name__} {error}; {cure}", stacklevel=2)
        return f"{_NO_SOURCE}{kind.__name__} {error}"


@cache
def _source_in_process(kind: type) -> str | None:
    """The same, but one of its own for each class whose source is unknown."""
    if is_shipped(kind):
        return None
    try:
        return source_of(kind)
    except Unresolved:
        return f"{_NO_SOURCE}class {next(_UNRESOLVED)} of this process"


_NO_SOURCE = "none: "


def deserialized(found: Any, cell: type | None, check_source: bool = True) -> Any:
    """The mode that a file holds; `cell` is what a user gave: needed for one that is not of this package."""
    if not isinstance(found, dict):
        return found
    name, source = found.get("cell"), found.get("source")
    if set(found) != {"cell", "source", "parameters"} or not isinstance(found["parameters"], dict):
        raise ValueError(f"a cell with the fields {sorted(found)}")
    cell = cell or _shipped(name, source)
    if cell is None:
        raise ValueError(f"one of the cell {name}; give it: load(path, cell={name})")
    declaration = cell.declaration  # type: ignore[attr-defined]
    if declaration.name != name:
        raise ValueError(f"one of the cell {name}, not of {declaration.name}")
    if check_source:
        _check_source(cell, source)
    if set(found["parameters"]) != set(cell._fields):  # type: ignore[attr-defined]
        raise ValueError(f"a cell with the parameters {sorted(found['parameters'])}")
    return cell(**{name: _deserialized_parameter(value, check_source) for name, value in found["parameters"].items()})


def _check_source(kind: type, source: Any) -> None:
    """Refuse a cell or an activation unless its source is known and is that of the file."""
    way = "; check_source=False loads it anyway"
    if isinstance(source, str) and source.startswith(_NO_SOURCE):
        raise ValueError(f"one saved without a source, because {source.removeprefix(_NO_SOURCE)}{way}")
    try:
        own = None if is_shipped(kind) else source_of(kind)
    except Unresolved as error:
        raise ValueError(f"one whose source cannot be compared: {kind.__name__} {error}{way}") from None
    if source != own and not (hasattr(kind, "declaration") and own and source == source_0_9(kind)):
        raise ValueError(f"one of {kind.__name__} with other equations (source {source}, here {own}){way}")


def _shipped(name: Any, source: Any) -> type | None:
    """The cell of this package that a file names; those of users have a source in theirs."""
    if source is not None or not isinstance(name, str):
        return None
    from rnnkit import cells  # each is checked when it is imported: only where one is asked for

    found = getattr(cells, name, None)
    return found if hasattr(found, "declaration") else None


def _deserialized_parameter(parameter: Any, check_source: bool) -> Any:
    if isinstance(parameter, list):
        known, (name, *numbers) = ACTIVATIONS, parameter or [None]
    elif isinstance(parameter, dict) and set(parameter) == {"activation", "source", "numbers"}:
        known, name, numbers = USER_ACTIVATIONS, parameter["activation"], parameter["numbers"]
    else:
        return parameter
    if not isinstance(name, str) or not isinstance(numbers, list):
        raise ValueError(f"a cell with the activation {parameter}")
    if known is USER_ACTIVATIONS and name not in known:
        raise ValueError(f"a cell with the activation {name}; import the module that registers it first")
    if name not in known or len(numbers) != len(known[name]._fields):
        raise ValueError(f"a cell with the activation {parameter}")
    if known is USER_ACTIVATIONS and check_source:
        _check_source(known[name], parameter["source"])
    return known[name](*numbers)
