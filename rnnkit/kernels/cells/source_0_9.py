"""The digest of a cell's source in files written by rnnkit until 0.9: a digest of texts."""

import hashlib
import inspect
import types
from textwrap import dedent
from typing import NamedTuple

from . import functions
from .source import changes_of


class Gate(NamedTuple):
    """A gate as it was until 0.9: its repr is part of the digest."""

    name: str
    multiplies: str | None
    apart: str | None


class _Unknown(Exception):
    """An equation uses something whose source is not available."""


def source_0_9(kind):
    """Return the digest of a cell's declaration and the texts of its stages and of all that they use, or None."""
    declaration, digest = kind.declaration, hashlib.sha256()
    is_new = declaration.derivation_version is not None or declaration.scalars or declaration.inputs
    if is_new or not all(gate.input for gate in declaration.gates):
        return None  # 0.9 had no such cells
    if changes_of(kind):
        return None  # the digest would not be of what runs
    gates = tuple(Gate(gate.name, gate.multiplies, gate.apart) for gate in declaration.gates)
    blocks = declaration.states, declaration.vectors, declaration.extra_slots
    declared = declaration.name, gates, *blocks, declaration.smooth, _parameters(kind)
    try:
        digest.update(repr(declared).encode())
        for stage in declaration.stages:
            digest.update(repr((stage.writes, stage.is_gradient)).encode())
            _add(digest, stage.function, set())
    except _Unknown:
        return None
    return digest.hexdigest()


def _parameters(kind):
    annotations = getattr(kind, "__annotations__", {})
    return [(name, getattr(one, "__name__", str(one))) for name, one in annotations.items()]


def _add(digest, function, seen):
    if function in seen:
        return
    seen.add(function)
    try:
        digest.update(dedent(inspect.getsource(function)).encode())
    except (OSError, TypeError):
        raise _Unknown from None
    for name, value in sorted(_used_by(function).items()):
        digest.update(f"\0{name}\0".encode())
        if isinstance(value, types.FunctionType) and value.__module__ != functions.__name__:
            _add(digest, value, seen)
        elif isinstance(value, (bool, int, float, str)):
            digest.update(repr(value).encode())
        elif not isinstance(value, (types.ModuleType, types.FunctionType, types.BuiltinFunctionType)):
            raise _Unknown


def _used_by(function):
    names = inspect.getclosurevars(function)
    return {**names.globals, **names.nonlocals}
