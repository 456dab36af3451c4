"""Side inputs of a cell: the engine appends them to x as columns, and their gradients to dx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rnnkit.call import checks
from rnnkit.common.arrays import library_of, sum_of_steps
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.modes import text_of_mode
from rnnkit.descriptor.weights import check_names
from rnnkit.errors import message, wrong_dtype, wrong_type


def with_inputs(function: str, desc: RNNDescriptor, x: np.ndarray, inputs: Any) -> np.ndarray:
    """Append the side inputs to x, which has been checked: (..., I + inputs_size). A new array unless there are none or
    all are columns of one array already, side by side.

    x is (..., I). Each array of the mapping `inputs` is (..., H) or (..., 1), or (N, H) for all steps of x.
    """
    if not desc.inputs_size:
        if inputs is not None:
            expected = f"be None with {text_of_mode(desc.mode)}"
            raise TypeError(message(function, "inputs", expected, type(inputs).__name__))
        return x
    names = [one.name for one in desc.cell.declaration.inputs]
    if not isinstance(inputs, Mapping):
        raise wrong_type(function, "inputs", f"a mapping of {', '.join(names)} to arrays", inputs)
    check_names(function, "inputs", f"the side inputs {', '.join(names)}", names, inputs)
    for name in names:
        _check(function, f'inputs["{name}"]', inputs[name], x, desc)
    columns, shape = [x, *(inputs[name] for name in names)], (*x.shape[:-1], desc.row_size)
    library: Any = library_of(x)
    if library is np and _are_side_by_side(columns, desc.hidden_size):
        return as_strided(x, shape, (*x.strides[:-1], x.itemsize))
    wide, start = library.empty(shape, x.dtype), 0
    for number, array in enumerate(columns):
        stop = start + (desc.hidden_size if number else desc.input_size)
        wide[..., start:stop] = array
        start = stop
    return wide


def _are_side_by_side(columns: list[np.ndarray], hidden_size: int) -> bool:
    """Whether arrays (..., size) are columns of one array, each behind the one before it."""
    first, *others = columns
    address, itemsize = first.__array_interface__["data"][0] + first.shape[-1] * first.itemsize, first.itemsize
    for number, array in enumerate(others):
        interface = array.__array_interface__
        if interface["data"][0] != address + number * hidden_size * itemsize or array.strides != others[0].strides:
            return False
    strides = others[0].strides
    fits = all(array.shape == (*first.shape[:-1], hidden_size) for array in others) and strides[-1] == itemsize
    return fits and first.strides[:-1] == strides[:-1] and (first.shape[-1] < 2 or first.strides[-1] == itemsize)


def _check(function: str, argument: str, value: Any, x: np.ndarray, desc: RNNDescriptor) -> None:
    checks.same_place(function, argument, value, x)
    if value.dtype != desc.np_dtype:
        raise wrong_dtype(function, argument, desc.dtype, value.dtype)
    *steps, rows, size = *x.shape[:-1], desc.hidden_size
    shapes = [(*steps, rows, size), (*steps, rows, 1)] + ([(rows, size)] if steps else [])
    if value.shape not in shapes:
        raise ValueError(message(function, argument, f"have shape {' or '.join(map(str, shapes))}", value.shape))


def split(desc: RNNDescriptor, wide: np.ndarray) -> tuple[np.ndarray, dict[str, Any] | None]:
    """Split wide rows into x and the side inputs by name (None without any), as views."""
    if not desc.inputs_size:
        return wide, None
    starts = zip(desc.cell.declaration.inputs, range(desc.input_size, desc.row_size, desc.hidden_size), strict=True)
    inputs = {one.name: wide[..., start : start + desc.hidden_size] for one, start in starts}
    return wide[..., : desc.input_size], inputs


def shapes_of(desc: RNNDescriptor, inputs: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of side inputs by name, in the order of their declaration."""
    return {one.name: inputs[one.name].shape for one in desc.cell.declaration.inputs}


def split_gradient(
    desc: RNNDescriptor, dx: np.ndarray, shapes: dict[str, tuple[int, ...]]
) -> tuple[np.ndarray, dict[str, Any]]:
    """Split a wide dx into the gradient of x and, by name, those of the side inputs, summed to these shapes."""
    gradients, start, library = {}, desc.input_size, library_of(dx)
    for name, shape in shapes.items():
        gradient = dx[..., start : start + desc.hidden_size]
        if len(shape) < dx.ndim:
            gradient = sum_of_steps(gradient)
        elif shape[-1] != desc.hidden_size:
            gradient = gradient.sum(axis=-1, keepdims=True)
        gradients[name] = library.ascontiguousarray(gradient)
        start += desc.hidden_size
    return library.ascontiguousarray(dx[..., : desc.input_size]), gradients
