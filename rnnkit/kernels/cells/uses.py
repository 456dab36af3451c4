"""What a function has from outside itself, by value: names of its module and of the functions around it, attributes.

Two functions of the same text compute different things where a name in them stands for something else.
"""

import dis
import sys
import types

import numpy as np

from . import functions

_PLAIN = bool, int, float, complex, str, bytes, type(None)
_LIBRARIES = "builtins", "cmath", "math", "numpy", "_operator"
_PACKAGE = __package__.removesuffix(".kernels.cells")
_WITH_NAMES = types.ModuleType, type
_NOTHING = object()


class Unresolved(Exception):
    """Something that a function uses, and that nothing tells in another process."""


def uses(function):
    """Path ("act", "consts.RATE") -> value, of each name that a function has from outside itself.

    Attributes are followed through modules and classes. A name that stands for nothing is left out.
    """
    found, around = {}, dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for code in codes_in(function.__code__):
        path, value = None, _NOTHING
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                path, value = name, _global(function, name)
            elif instruction.opname == "LOAD_DEREF" and name in around:
                path, value = name, _content(around[name])
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path and isinstance(value, _WITH_NAMES):
                found.pop(path, None)
                path, value = f"{path}.{name}", getattr(value, name, _NOTHING)
            elif instruction.opname != "EXTENDED_ARG":
                path = None
            if path and value is not _NOTHING:
                found[path] = value
    return found


def helpers_of(function):
    """The functions of numbers that a function calls, those of `functions` left out."""
    found = (one for one in uses(function).values() if isinstance(one, types.FunctionType))
    return [one for one in found if one.__module__ != functions.__name__]


def described(path, value, of_function):
    """What a value is, as text and tuples that are equal in every process; `of_function` tells what a function is.

    Raises Unresolved where only this process knows; `path` says where it stands.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind.__name__, repr(value)
    if isinstance(value, (tuple, list)):
        return kind.__name__, getattr(kind, "_fields", ()), *(described(path, one, of_function) for one in value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.str, value.shape, value.tobytes().hex()
    if _is_known(value):
        return value.__module__.partition(".")[0].lstrip("_"), value.__qualname__
    if isinstance(value, types.FunctionType):
        return of_function(value)
    if isinstance(getattr(value, "py_func", None), types.FunctionType):  # a function that Numba compiles
        return "compiled", repr(value.targetoptions), of_function(value.py_func)
    raise Unresolved(f"uses {path}, a {kind.__name__}, which another process cannot be told")


def codes_in(code):
    """A code object, and those of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def _global(function, name):
    names = function.__globals__
    return names.get(name, getattr(sys.modules["builtins"], name, _NOTHING))


def _content(around):
    try:
        return around.cell_contents
    except ValueError:  # not yet
        return _NOTHING


def _is_known(value):
    """Whether it is of a library or of this package, where its name tells it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return False
    if module.partition(".")[0] not in (*_LIBRARIES, _PACKAGE):
        return False
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value
