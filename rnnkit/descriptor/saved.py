"""The file of a network: descriptor, weights and extra arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from typing import Any

import numpy as np

from rnnkit.common import archive
from rnnkit.common.arrays import Array, library_of, not_an_array, on_host
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.modes import deserialized, serialized
from rnnkit.descriptor.weights import num_weights
from rnnkit.errors import message

FORMAT = 1
MEMBERS = ("format", "descriptor", "weights")
_LATER = {"learned_initial_state": False}
"""Fields that files of earlier versions lack, with their value there; a file has only those with another."""


def descriptor_json(desc: RNNDescriptor) -> str:
    """Serialize a descriptor to JSON."""
    found = {field.name: getattr(desc, field.name) for field in fields(desc)}
    found = {name: value for name, value in found.items() if name not in _LATER or value != _LATER[name]}
    return json.dumps(found | {"mode": serialized(desc.mode)})


def descriptor_of(text: str, cell: type | None = None, check_source: bool = True) -> RNNDescriptor:
    """Return the descriptor of a JSON text; raise ValueError if it is not valid.

    `cell` is the class of a custom cell. With `check_source` its equations must be those of the file.
    """
    expected = {field.name for field in fields(RNNDescriptor)}
    try:
        found = json.loads(text)
        missing, unknown = sorted(expected - set(found) - set(_LATER)), sorted(set(found) - expected)
        if missing or unknown:
            raise ValueError(f"missing fields {missing} and unknown fields {unknown}")
        return RNNDescriptor(**found | {"mode": deserialized(found["mode"], cell, check_source)})
    except (TypeError, ValueError, ImportError, RecursionError) as error:
        raise ValueError(str(error)[:400]) from error


def members(desc: RNNDescriptor, w: Array) -> dict[str, Any]:
    """Return the contents of the file of a network, by name."""
    return dict(zip(MEMBERS, (FORMAT, descriptor_json(desc), on_host(w)), strict=True))


def write(path: str | PathLike[str], desc: RNNDescriptor, w: Array, arrays: Mapping[str, Any]) -> None:
    """Write a network and extra arrays to a file."""
    found = {name: _plain(name, value) for name, value in arrays.items()}
    archive.write(path, members(desc, w) | found)


def _plain(name: str, value: Any) -> np.ndarray:
    """Convert an extra array to one that `read` accepts."""
    if name in MEMBERS:
        raise ValueError(f"save: {name} is a reserved name; use one other than {', '.join(MEMBERS)}")
    if isinstance(value, np.ma.MaskedArray):
        raise not_an_array("save", name, "a plain array", value)
    try:
        array = on_host(value) if library_of(value) is not None else np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"save: {name} cannot be converted to an array ({error})") from None
    if array.dtype.kind not in "biufcSU" or not array.dtype.itemsize:
        expected = "hold numbers, booleans or text"
        raise TypeError(message("save", name, expected, f"dtype {array.dtype}"))
    return array


def extra_arrays(file: archive.Reader) -> dict[str, np.ndarray]:
    """Return the extra arrays of a file, by name."""
    names = [name for name in file.names() if name not in MEMBERS]
    file.require(tuple(names))
    return {name: file.array(name) for name in names}


def read(file: archive.Reader, cell: type | None = None, check_source: bool = True) -> tuple[RNNDescriptor, np.ndarray]:
    """Return the descriptor and the weights of a file, checked in this order.

    `cell` and `check_source` are as for :func:`rnnkit.load`.
    """
    file.require(MEMBERS)
    dtype, shape, *_ = file.header("format")
    found = file.array("format") if dtype.kind in "iu" and shape == () else f"of dtype {dtype} and shape {shape}"
    if found != FORMAT:
        raise file.refusal(f"hold a network in format {FORMAT}", f"format {found}")
    text = file.text("descriptor")
    try:
        desc = descriptor_of(text, cell, check_source)
    except ValueError as error:
        raise file.refusal("hold a valid descriptor", error) from error
    dtype, shape, *_ = file.header("weights")
    stored = np.dtype("V2") if desc.dtype == "bfloat16" else desc.np_dtype  # .npy has no name for bfloat16
    if dtype != stored or shape != (num_weights(desc),):
        expected = f"hold weights of dtype {desc.dtype} and shape (num_weights={num_weights(desc)},)"
        raise file.refusal(expected, f"dtype {dtype} and shape {shape}")
    return desc, file.array("weights").view(desc.np_dtype)
