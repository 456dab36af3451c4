"""The exceptions of rnnkit, and the one form that all its messages have."""

from __future__ import annotations

from typing import Any


class WorkspaceError(RuntimeError):
    """A workspace does not belong to this call: it is stale, another's, or in use, as a stream may be."""


class BackendError(RuntimeError):
    """The device or its library cannot do what was asked."""


def message(function: str, argument: str, expected: str, got: Any, cure: str = "") -> str:
    if isinstance(got, int) and got.bit_length() > 128:
        got = f"an int of {got.bit_length()} bits"  # str refuses the longest
    text = f"{function}: {argument} must {expected}, got {got}"
    return f"{text}; {cure}" if cure else text


def wrong_type(function: str, argument: str, expected: str, value: Any, cure: str = "") -> TypeError:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return TypeError(message(function, argument, f"be {expected}", name, cure))


def wrong_dtype(function: str, argument: str, dtype: str, got: Any) -> TypeError:
    cure = f'convert it with {argument}.astype("{dtype}")'
    return TypeError(message(function, argument, f"be {dtype} as the descriptor says", got, cure))


def wrong_shape(
    function: str, argument: str, shape: tuple[int | None, ...], dims: tuple[str, ...], got: tuple[int, ...]
) -> ValueError:
    """Name every dimension, with its size where that is prescribed (None: any size)."""
    parts = [name if size is None else f"{name}={size}" for name, size in zip(dims, shape, strict=True)]
    text = f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    return ValueError(message(function, argument, f"have shape {text}", got))
