"""A cell's side inputs: inside of the engine they stand behind x in its rows, and so do their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnkit.call import checks
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.modes import text_of_mode
from rnnkit.descriptor.weights import check_names
from rnnkit.errors import message, wrong_dtype, wrong_type


def with_inputs(function: str, desc: RNNDescriptor, x: np.ndarray, inputs: Any) -> np.ndarray:
    """Return x, which has been checked, with the side inputs of its steps behind it: (..., I + inputs_size), a new
    array unless the cell has none.

    Each of the mapping `inputs` is (..., H) or (..., 1) where x is (..., I), or (N, H) for all of its steps.
    """
    names = [one.name for one in desc.cell.declaration.inputs]
    if not names:
        if inputs is not None:
            expected = f"be None with {text_of_mode(desc.mode)}"
            raise TypeError(message(function, "inputs", expected, type(inputs).__name__))
        return x
    if not isinstance(inputs, Mapping):
        raise wrong_type(function, "inputs", f"a mapping of {', '.join(names)} to arrays", inputs)
    check_names(function, "inputs", f"the side inputs {', '.join(names)}", names, inputs)
    wide, start = np.empty((*x.shape[:-1], desc.row_size), x.dtype), desc.input_size
    wide[..., :start] = x
    for name in names:
        _check(function, f'inputs["{name}"]', inputs[name], x, desc)
        wide[..., start : start + desc.hidden_size] = inputs[name]
        start += desc.hidden_size
    return wide


def _check(function: str, argument: str, value: Any, x: np.ndarray, desc: RNNDescriptor) -> None:
    checks.same_place(function, argument, value, x)
    if value.dtype != desc.np_dtype:
        raise wrong_dtype(function, argument, desc.dtype, value.dtype)
    *steps, rows, size = *x.shape[:-1], desc.hidden_size
    shapes = [(*steps, rows, size), (*steps, rows, 1)] + ([(rows, size)] if steps else [])
    if value.shape not in shapes:
        raise ValueError(message(function, argument, f"have shape {' or '.join(map(str, shapes))}", value.shape))


def split(desc: RNNDescriptor, wide: np.ndarray) -> tuple[np.ndarray, dict[str, Any] | None]:
    """Return x and the side inputs by name, None without any, as views of x with them behind it."""
    if not desc.inputs_size:
        return wide, None
    starts = zip(desc.cell.declaration.inputs, range(desc.input_size, desc.row_size, desc.hidden_size), strict=True)
    inputs = {one.name: wide[..., start : start + desc.hidden_size] for one, start in starts}
    return wide[..., : desc.input_size], inputs


def shapes_of(desc: RNNDescriptor, inputs: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of side inputs by name, in the order of their declaration."""
    return {one.name: inputs[one.name].shape for one in desc.cell.declaration.inputs}


def apart_of(
    desc: RNNDescriptor, dx: np.ndarray, shapes: dict[str, tuple[int, ...]]
) -> tuple[np.ndarray, dict[str, Any]]:
    """The gradient of x with those of side inputs behind it, as that of x and, by name, of inputs of these shapes."""
    found, start = {}, desc.input_size
    for name, shape in shapes.items():
        own = dx[..., start : start + desc.hidden_size]
        if len(shape) < dx.ndim:
            own = own.sum(axis=0)
        elif shape[-1] != desc.hidden_size:
            own = own.sum(axis=-1, keepdims=True)
        found[name] = np.ascontiguousarray(own)
        start += desc.hidden_size
    return np.ascontiguousarray(dx[..., : desc.input_size]), found
