"""The exceptions of rnnkit, and the common form of their messages."""

from __future__ import annotations

from typing import Any


class WorkspaceError(RuntimeError):
    """A workspace or a stream is stale, belongs to another network, or is in use."""


class BackendError(RuntimeError):
    """The device or its library cannot do what is requested."""


def message(function: str, argument: str, expected: str = "", got: Any = None, cure: str = "") -> str:
    """Format ``<function>: <argument> must <expected>, got <got>; <cure>``.

    For a state, which has no value, leave out `expected` and `got`: `argument` is then a sentence.

    >>> message("Stream.step", "the stream is in use by another call", cure="give each thread its own stream")
    'Stream.step: the stream is in use by another call; give each thread its own stream'
    """
    if isinstance(got, int) and got.bit_length() > 128:
        got = f"an int of {got.bit_length()} bits"  # str() raises for the longest
    text = f"{function}: {argument} must {expected}, got {got}" if expected else f"{function}: {argument}"
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
    """Name every dimension, with its size unless any size is allowed (None)."""
    parts = [name if size is None else f"{name}={size}" for name, size in zip(dims, shape, strict=True)]
    text = f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    return ValueError(message(function, argument, f"have shape {text}", got))
