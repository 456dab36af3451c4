"""External values of a function: globals, closures, and attributes of modules and classes.

Two functions with the same text differ if a name in them refers to different values.
"""

import builtins
import dis
import sys
import types

import numpy as np

from . import functions

_PLAIN = bool, int, float, complex, str, bytes, type(None)
_PACKAGE = __package__.partition(".")[0]
_LIBRARIES = "builtins", "cmath", "math", "numpy", "_operator", "rnnkit", _PACKAGE
_WITH_NAMES = types.ModuleType, type
_NOTHING = object()


class Unresolved(Exception):
    """A function uses a value that cannot be identified in another process."""


def uses(function):
    """Return path ("act", "consts.RATE") -> value for each external value of a function.

    Attributes are followed through modules and classes. A name without a value is left out.
    """
    found, closure = {}, dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for code in codes_in(function.__code__):
        path, value = None, _NOTHING
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                path, value = name, function.__globals__.get(name, getattr(builtins, name, _NOTHING))
            elif instruction.opname == "LOAD_DEREF" and name in closure:
                path, value = name, _content(closure[name])
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path and isinstance(value, _WITH_NAMES):
                found.pop(path, None)
                path, value = f"{path}.{name}", getattr(value, name, _NOTHING)
            elif instruction.opname != "EXTENDED_ARG":
                path = None
            if path and value is not _NOTHING:
                found[path] = value
    return found


def looked_up(function, name):
    """Return the value of a name that is external to a function. Raises NameError."""
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found = _content(closure[name]) if name in closure else function.__globals__.get(name, _NOTHING)
    found = getattr(builtins, name, _NOTHING) if found is _NOTHING else found
    if found is _NOTHING:
        raise NameError(f"name {name!r} is not defined")
    return found


def helpers_of(function):
    """Return the functions that a function calls, except those of `functions`."""
    found = (one for one in uses(function).values() if isinstance(one, types.FunctionType))
    return [one for one in found if one.__module__ != functions.__name__]


def described(path, value, of_function):
    """Return a value as text and tuples that are equal in every process; `of_function` describes a function.

    Raises Unresolved, with the value's `path`, if it cannot be described.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind.__name__, repr(value)
    if isinstance(value, (tuple, list)):
        return kind.__name__, getattr(kind, "_fields", ()), *(described(path, one, of_function) for one in value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.str, value.shape, value.tobytes().hex()
    if _is_known(value):
        library = value.__module__.partition(".")[0].lstrip("_")
        return "rnnkit" if library == _PACKAGE else library, value.__qualname__  # digests in files say rnnkit
    if isinstance(value, types.FunctionType):
        return of_function(value)
    if isinstance(getattr(value, "py_func", None), types.FunctionType):  # a function that Numba compiles
        return "compiled", repr(value.targetoptions), of_function(value.py_func)
    raise Unresolved(f"uses {path}, a {kind.__name__}, which cannot be identified in another process")


def codes_in(code):
    """Yield a code object, and those of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def _content(closure_cell):
    try:
        return closure_cell.cell_contents
    except ValueError:  # not assigned yet
        return _NOTHING


def _is_known(value):
    """Whether the qualified name identifies a value: it belongs to a known library or to this package."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return False
    if module.partition(".")[0] not in _LIBRARIES:
        return False
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value
