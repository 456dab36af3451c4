"""Validation and normalisation of the fields of a descriptor."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from numbers import Integral
from typing import Any, get_args

import numpy as np

from rnnkit.common.extras import to_install
from rnnkit.common.numbers import MAX_SIZE, real_number
from rnnkit.descriptor.modes import checked
from rnnkit.errors import message, wrong_type
from rnnkit.types import Bias, HalfDType, HostDType, InputMode

BIASES: tuple[str, ...] = get_args(Bias)
INPUT_MODES: tuple[str, ...] = get_args(InputMode)
MAX_LAYERS = 10_000  # Python works on each layer: with more, a call would hang for minutes
HOST_DTYPES: tuple[str, ...] = get_args(HostDType)
DTYPES: tuple[str, ...] = (*HOST_DTYPES, *get_args(HalfDType))  # half precision: GPU only


def _size(name: str, value: Any, maximum: int = MAX_SIZE, may_be_zero: bool = False) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise wrong_type("RNNDescriptor", name, "an int", value)
    size = int(value)
    if not 1 <= size <= maximum and not (size == 0 and may_be_zero):
        raise ValueError(message("RNNDescriptor", name, "be at least 1" if size < 1 else f"be at most {maximum}", size))
    return size


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise wrong_type("RNNDescriptor", name, "a bool", value)
    return bool(value)


def _choice(choices: Collection[str], name: str, value: Any) -> str:
    listed = " or ".join(f'"{choice}"' for choice in choices)
    if not isinstance(value, str):
        raise wrong_type("RNNDescriptor", name, listed, value)
    if value not in choices:
        raise ValueError(message("RNNDescriptor", name, f"be {listed}", repr(value)))
    # Not the value itself, which may be an instance of a subclass of str.
    return next(choice for choice in choices if choice == value)


def _bias(name: str, value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):  # accepted as in other libraries
        return "both" if value else "none"
    return _choice(BIASES, name, value)


def _projection(name: str, value: Any) -> int | None:
    if value is None or (isinstance(value, Integral) and not isinstance(value, bool) and value == 0):
        return None  # accepted as in PyTorch
    return _size(name, value)


def _probability(name: str, value: Any) -> float:
    number = real_number("RNNDescriptor", name, value)
    if not 0.0 <= number <= 1.0:  # also rejects NaN
        raise ValueError(message("RNNDescriptor", name, "be in [0, 1]", number))
    return number


def _bounds(name: str, value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    if not isinstance(value, (tuple, list)):
        raise wrong_type("RNNDescriptor", name, "None or (low, high)", value)
    bounds = tuple(value)
    if len(bounds) != 2:
        raise ValueError(message("RNNDescriptor", name, "hold 2 numbers (low, high)", len(bounds)))
    low, high = (real_number("RNNDescriptor", f"{name}[{i}]", bound) for i, bound in enumerate(bounds))
    if not low < high:  # also rejects NaN
        raise ValueError(message("RNNDescriptor", name, "be (low, high) with low < high", (low, high)))
    return low, high


def _dtype(name: str, value: Any) -> str:
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        dtype = np.dtype(value)
        value = dtype.name if dtype.isnative else dtype.str
    chosen = _choice(DTYPES, name, value)
    np_dtype(chosen)
    return chosen


def np_dtype(name: str) -> np.dtype:
    if name != "bfloat16":
        return np.dtype(name)
    try:
        from ml_dtypes import bfloat16  # NumPy has no bfloat16
    except ImportError:
        expected = f"be one of {', '.join(DTYPES[:-1])} without the package ml_dtypes"
        raise ImportError(message("RNNDescriptor", "dtype", expected, name, to_install("ml_dtypes"))) from None
    return np.dtype(bfloat16)


FIELDS: dict[str, Callable[[str, Any], Any]] = {
    "mode": lambda _, value: checked("RNNDescriptor", value),
    "input_size": partial(_size, may_be_zero=True),
    "hidden_size": _size,
    "num_layers": partial(_size, maximum=MAX_LAYERS),
    "bidirectional": _flag,
    "bias": _bias,
    "input_mode": partial(_choice, INPUT_MODES),
    "proj_size": _projection,
    "dropout": _probability,
    "cell_clip": _bounds,
    "reset_after": _flag,
    "dtype": _dtype,
    "allow_tf32": _flag,
    "learned_initial_state": _flag,
}
