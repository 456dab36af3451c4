"""Checks of arguments. The first parameter is the name of the calling function, for the message."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from numbers import Integral
from typing import Any

import numpy as np

from rnnkit.call.checks import same_place
from rnnkit.common.arrays import library_of, not_an_array, overlap
from rnnkit.common.numbers import MAX_SIZE, real_number
from rnnkit.errors import message, wrong_type

DTYPES = "float32", "float64"
AN_ARRAY = "a numpy.ndarray or a cupy.ndarray"


def number(function: str, name: str, value: Any, expected: str, inside: Callable[[float], bool]) -> float:
    """Return a number that `inside` accepts; `expected` describes it in words."""
    number = real_number(function, name, value, "a number")
    if not inside(number):
        raise ValueError(message(function, name, expected, value))
    return number


def finite(function: str, name: str, value: Any) -> float:
    """Return a finite number of at least 0."""
    return number(function, name, value, "be a finite number of at least 0", lambda number: 0 <= number < math.inf)


def dtype_max(array: Any) -> float:
    """Return the largest finite number of an array's dtype."""
    return float(np.finfo(array.dtype).max)


def integer(function: str, name: str, value: Any, low: int) -> None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise wrong_type(function, name, "an int", value)
    if not low <= value <= MAX_SIZE:
        expected = f"be at least {low}" if value < low else f"be at most {MAX_SIZE}"
        raise ValueError(message(function, name, expected, value))


def real_dtype(function: str, value: Any) -> None:
    """Check the argument dtype."""
    if value not in DTYPES:
        raise ValueError(message(function, "dtype", 'be "float32" or "float64"', repr(value)))


def array(function: str, name: str, value: Any) -> None:
    if library_of(value) is None:
        raise not_an_array(function, name, AN_ARRAY, value)


def real_array(function: str, name: str, value: Any) -> None:
    """Check that a value is an array of float32 or float64."""
    array(function, name, value)
    if value.dtype not in DTYPES:
        cure = f'convert it with {name}.astype("float32")'
        raise TypeError(message(function, name, "be float32 or float64", value.dtype, cure))


def last_size(function: str, name: str, value: Any, size: str) -> int:
    """Return the last dimension of an array of float32 or float64, at least 1; `size` is the name of the dimension."""
    real_array(function, name, value)
    if value.ndim < 1 or value.shape[-1] < 1:
        raise ValueError(message(function, name, f"have shape (..., {size})", value.shape))
    return value.shape[-1]


def same_dtype(function: str, name: str, value: Any, like: Any, like_name: str) -> None:
    if value.dtype != like.dtype:
        cure = f'convert it with {name}.astype("{like.dtype}")'
        raise TypeError(message(function, name, f"be {like.dtype} like {like_name}", value.dtype, cure))


def same_shape(function: str, name: str, value: Any, shape: tuple[int, ...], reason: str) -> None:
    if value.shape != shape:
        raise ValueError(message(function, name, f"have shape {shape} {reason}", value.shape))


def contiguous(function: str, name: str, value: Any) -> None:
    if not value.flags.c_contiguous:
        cure = f"copy it with numpy.ascontiguousarray({name})"
        raise ValueError(message(function, name, "be C-contiguous", f"strides {value.strides}", cure))


def writeable(function: str, name: str, value: Any) -> None:
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        raise ValueError(message(function, name, "be writeable", "a read-only array"))


def check_like(
    function: str, name: str, value: Any, other: Any, other_name: str, shape: tuple[int, ...], reason: str
) -> None:
    """Check that an array has this shape, and the device and dtype of the other array."""
    same_place(function, name, value, other)
    same_dtype(function, name, value, other, other_name)
    same_shape(function, name, value, shape, reason)


def output(
    function: str, name: str, value: Any, other: Any, other_name: str, shape: tuple[int, ...], reason: str
) -> None:
    """Check an output as `check_like` does, and that it can be written."""
    check_like(function, name, value, other, other_name, shape, reason)
    contiguous(function, name, value)
    writeable(function, name, value)


def separate(function: str, name: str, value: Any, **others: Any) -> None:
    """Check that an output shares no memory with the inputs."""
    for other_name, other in others.items():
        if overlap(value, other):
            raise ValueError(message(function, name, "have memory of its own", f"the memory of {other_name}"))


def buffers(function: str, name: str, value: Any) -> list[tuple[str, Any]]:
    """Return one array or a sequence of them as a list of (name, array); check that they share a dtype and a device."""
    if library_of(value) is not None:
        found = [(name, value)]
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        found = [(f"{name}[{i}]", array) for i, array in enumerate(value)]
    else:
        raise not_an_array(function, name, f"{AN_ARRAY}, or a sequence of them", value)
    if not found:
        raise ValueError(message(function, name, "hold at least one array", "none"))
    for own, array in found:
        real_array(function, own, array)
        same_place(function, own, array, found[0][1])
        same_dtype(function, own, array, found[0][1], found[0][0])
        contiguous(function, own, array)
    return found


def outputs(function: str, name: str, value: Any) -> list[tuple[str, Any]]:
    """Do the same as `buffers` for outputs, which must be writeable and share no memory."""
    found = buffers(function, name, value)
    for own, array in found:
        writeable(function, own, array)
    for (own, array), (other_name, other) in combinations(found, 2):
        if overlap(array, other):
            raise ValueError(message(function, other_name, "have memory of its own", f"the memory of {own}"))
    return found
