"""The argument `mode`, the name of a mode or a cell: validation, messages, files."""

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
from rnnkit_kernels.cells.activations import ACTIVATIONS, POSITIVE, USER_ACTIVATIONS, Activation
from rnnkit_kernels.cells.cell import Stage
from rnnkit_kernels.cells.modes import MODES
from rnnkit_kernels.cells.rules import parameter_types
from rnnkit_kernels.cells.source import code_key, is_shipped, source_of
from rnnkit_kernels.cells.uses import Unresolved


def checked(function: str, value: Any, argument: str = "mode") -> Any:
    """Validate a mode: return its name, or a cell with its parameters converted to their types."""
    listed = " or ".join(f'"{mode}"' for mode in MODES)
    if isinstance(value, str):
        known = next((mode for mode in MODES if mode == value), None)  # the value may be a subclass of str
        if known is None:
            raise ValueError(message(function, argument, f"be {listed}", repr(value)))
        return known
    return checked_cell(function, argument, value, f"{listed} or a cell")


def checked_cell(function: str, argument: str, value: Any, expected: str = "a cell") -> Any:
    """Validate a cell or the class of one: return the cell with its parameters converted to their types."""
    kind = value if isinstance(value, type) else type(value)
    if not hasattr(kind, "declaration"):
        raise not_a_cell(function, argument, expected, value)
    if isinstance(value, type):
        missing = [name for name in kind._fields if name not in kind._field_defaults]
        if missing:
            text = f"{function}: {argument}: {kind.__name__} needs its parameters {', '.join(missing)}"
            raise TypeError(f"{text}; pass an instance instead of the class")
        value = kind()
    types = parameter_types(kind)
    prefix = f"{argument}, {kind.__name__}'s "
    parameters = {name: _parameter(function, f"{prefix}{name},", getattr(value, name), types[name]) for name in types}
    for noise in kind.declaration.noises:
        rate = parameters[noise.rate]
        if not 0 <= rate <= 1:
            raise ValueError(message(function, f"{prefix}{noise.rate},", "be in [0, 1]", rate))
    return kind(**parameters)


def not_a_cell(function: str, argument: str, expected: str, value: Any) -> TypeError:
    """Return the error for an argument that is not a cell."""
    kind = value if isinstance(value, type) else type(value)
    if any(isinstance(one, Stage) for one in vars(kind).values()):
        got, cure = f"{kind.__name__} without its decorator", "decorate the class with @rnnkit.cells.cell"
        if hasattr(kind, "declaration"):
            got, cure = f"an object of {kind.__name__}", f"pass {kind.__name__}: the file has its parameters"
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
    """Raise if a parameter of a cell rounds to 0 or infinity in the dtype: the equations may divide by it."""
    for name, value in () if isinstance(mode, str) else mode._asdict().items():
        numbers = value._asdict() if isinstance(value, Activation) else {"": value}
        for own, number in numbers.items():
            with np.errstate(all="ignore"):
                rounded = float(dtype.type(number))
            if rounded != number and (rounded == 0 or math.isinf(rounded)):
                argument = f"mode, {type(mode).__name__}'s {name},{own and ' '}{own}"
                raise ValueError(message(function, argument, f"fit {dtype}", number, f"it rounds to {rounded}"))


def cell_of(mode: Any, desc: Any) -> Any:
    """Return the cell that the kernels run, with its parameters in the dtype of the network."""
    if isinstance(mode, str):
        with np.errstate(over="ignore"):  # a bound outside the range of the dtype becomes infinite
            return MODES[mode].cell(desc)
    kind, real = type(mode), desc.np_dtype.type
    types = parameter_types(kind)
    given = (getattr(mode, name) for name in kind._fields)
    # Ints are converted, too: an int64 would promote float32 to float64.
    of = {bool: bool, int: real, float: real, Activation: lambda one: _compiled(type(one))(*map(real, one))}
    return _compiled(kind)(*(of[types[name]](value) for name, value in zip(kind._fields, given, strict=True)))


@cache
def _compiled(kind: type) -> type:
    """Return the class that kernels are compiled for. Its name has a digest, so that two versions never share code."""
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
    """Return the mode as written in an argument, for a message."""
    return f'mode="{mode}"' if isinstance(mode, str) else f"mode={mode!r}"


def has_option(mode: Any, option: str) -> bool:
    """Return whether a mode has this mode-specific option."""
    if isinstance(mode, str):
        return option in MODES[mode].options
    declaration = mode.declaration
    takes_projection = declaration.sources == ("h",) and declaration.heads == 1 and not declaration.reads_hidden()
    return option == "proj_size" and takes_projection


def serialized(mode: Any) -> Any:
    """Return a mode for a file: its name, or the name, source digest and parameters of its cell."""
    return _serialized(mode, _saved_source)


def text_in_process(mode: Any) -> str:
    """Return a key that identifies a cell and its parameters; stable across processes if the source is known."""
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
    """Return the source digest of a user's cell or activation for a file; None for those of rnnkit.

    If the source is unknown, return "none: <reason>" and warn. An error would lose a long training run at its save.
    """
    if is_shipped(kind):
        return None
    try:
        return source_of(kind)
    except Unresolved as error:
        cure = "to load the file, pass check_source=False"
        warnings.warn(f"save: {kind.__name__} {error}; {cure}", stacklevel=2)
        return f"{_NO_SOURCE}{kind.__name__} {error}"


@cache
def _source_in_process(kind: type) -> str | None:
    """Return the source digest as above; for a class with unknown source, a unique placeholder in this process."""
    if is_shipped(kind):
        return None
    try:
        return source_of(kind)
    except Unresolved:
        return f"{_NO_SOURCE}class {next(_UNRESOLVED)} of this process"


_NO_SOURCE = "none: "


def deserialized(found: Any, cell: type | None, check_source: bool = True) -> Any:
    """Return the mode of a file. `cell` is the class passed by the user, required for custom cells."""
    if not isinstance(found, dict):
        return found
    name, source = found.get("cell"), found.get("source")
    if set(found) != {"cell", "source", "parameters"} or not isinstance(found["parameters"], dict):
        raise ValueError(f"a cell with the unexpected fields {sorted(found)}")
    cell = cell or _shipped(name, source)
    if cell is None:
        raise ValueError(f"a network of the cell {name}; pass load(path, cell={name})")
    declaration = cell.declaration  # type: ignore[attr-defined]
    if declaration.name != name:
        raise ValueError(f"a network of the cell {name}, not of {declaration.name}")
    if check_source:
        _check_source(cell, source)
    if set(found["parameters"]) != set(cell._fields):  # type: ignore[attr-defined]
        raise ValueError(f"a cell with the unexpected parameters {sorted(found['parameters'])}")
    return cell(**{name: _deserialized_parameter(value, check_source) for name, value in found["parameters"].items()})


def _check_source(kind: type, source: Any) -> None:
    """Raise unless the source of a cell or activation is known and equals that of the file."""
    hint = "; check_source=False skips this check"
    if isinstance(source, str) and source.startswith(_NO_SOURCE):
        raise ValueError(f"a cell saved without its source, because {source.removeprefix(_NO_SOURCE)}{hint}")
    try:
        own = None if is_shipped(kind) else source_of(kind)
    except Unresolved as error:
        raise ValueError(f"a source that cannot be compared: {kind.__name__} {error}{hint}") from None
    if source != own:
        theirs, ours = (str(one)[:8] for one in (source, own))
        raise ValueError(f"{kind.__name__} with other equations (source {theirs}, here {ours}){hint}")


def _shipped(name: Any, source: Any) -> type | None:
    """Return the cell of rnnkit that a file names; None for custom cells, whose files have a source."""
    if source is not None or not isinstance(name, str):
        return None
    from rnnkit import cells  # imported lazily: importing a cell derives its gradient

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
        raise ValueError(f"the invalid activation {parameter}")
    if known is USER_ACTIVATIONS and name not in known:
        raise ValueError(f"the unknown activation {name}; import the module that registers it")
    if name not in known or len(numbers) != len(known[name]._fields):
        raise ValueError(f"the invalid activation {parameter}")
    if known is USER_ACTIVATIONS and check_source:
        _check_source(known[name], parameter["source"])
    return known[name](*numbers)
