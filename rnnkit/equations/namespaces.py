"""What equations call, in NumPy, PyTorch and JAX: a table of functions for each.

`max`, `min`, `clip` and `if` choose between values, so that a NaN and a tie do what they do in the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from rnnkit.errors import message
from rnnkit_kernels.cells.activations import softplus
from rnnkit_kernels.cells.functions import clip, exp, fma, mean, sigmoid, tanh

BACKENDS = "numpy", "torch", "jax"
_SAME = math.sqrt, math.log, math.log1p, math.expm1, math.sin, math.cos  # have this name everywhere


@cache
def namespace(function: str, backend: str) -> SimpleNamespace:
    """Return `table`, a dict of function in equations -> function of arrays, and the few others that a step needs."""
    if backend not in BACKENDS:
        raise ValueError(message(function, "backend", f"be one of {', '.join(BACKENDS)}", repr(backend)))
    return {"numpy": _numpy, "torch": _torch, "jax": _jax}[backend]()


def _numpy() -> SimpleNamespace:
    def where(condition: Any, one: Any, other: Any, like: Any) -> Any:
        return np.where(condition, one, other).astype(like.dtype, copy=False)

    own = {
        sigmoid: lambda x: 0.5 + 0.5 * np.tanh(0.5 * x), softplus: lambda x: np.logaddexp(x, x.dtype.type(0)),
        mean: lambda x: x.mean(-1, keepdims=True),
    }  # fmt: skip
    return _made(np, own, where, np.concatenate, lambda shape, like: np.zeros(shape, like.dtype))


def _torch() -> SimpleNamespace:
    import torch

    def where(condition: Any, one: Any, other: Any, like: Any) -> Any:
        one, other = (x if torch.is_tensor(x) else torch.as_tensor(x, dtype=like.dtype) for x in (one, other))
        return torch.where(condition, one, other)

    own = {
        sigmoid: torch.sigmoid, softplus: lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        mean: lambda x: x.mean(-1, keepdim=True),
    }  # fmt: skip
    made = _made(torch, own, where, torch.cat, lambda shape, like: like.new_zeros(shape))
    made.asarray = lambda array, like: torch.as_tensor(array, device=like.device)

    def values(array: Any) -> Any:
        """NumPy's array of the values; the tensor itself if a transform or a trace hides them, or they are on a GPU."""
        is_plain = type(array) is torch.Tensor and array.is_cpu and not torch._C._len_torch_dispatch_stack()
        if torch.is_tensor(array) and (not is_plain or torch._C._functorch.is_functorch_wrapped_tensor(array)):
            return array
        return np.asarray(array.detach() if is_plain else array)

    made.values = values
    # Their gradients are one operation each; those of slices are as many zero arrays as slices.
    made.linear, made.scan = torch.nn.functional.linear, partial(_loop, torch.unbind, torch.stack)
    made.split = lambda values, count: torch.chunk(values, count, -1) if count > 1 else (values,)
    return made


def _jax() -> SimpleNamespace:
    import jax
    import jax.numpy as jnp

    def where(condition: Any, one: Any, other: Any, like: Any) -> Any:
        return jnp.where(condition, one, other).astype(like.dtype)

    own = {
        sigmoid: jax.nn.sigmoid, softplus: lambda x: jnp.logaddexp(x, 0.0), mean: lambda x: x.mean(-1, keepdims=True)
    }  # fmt: skip
    made = _made(jnp, own, where, jnp.concatenate, lambda shape, like: jnp.zeros(shape, like.dtype))
    made.asarray = lambda array, like: jnp.asarray(array)
    made.values = lambda array: array if isinstance(array, jax.core.Tracer) else np.asarray(array)

    def scan(step: Callable[..., tuple[Any, Any]], carry: Any, arrays: list[Any], reverse: bool) -> tuple[Any, Any]:
        """Run `lax.scan`: a loop in Python would be compiled step by step."""
        return jax.lax.scan(lambda carry, at: step(carry, *at), carry, arrays, reverse=reverse)

    made.scan = scan
    return made


def _made(
    module: Any,
    own: dict[Callable[..., Any], Any],
    where: Callable[..., Any],
    concatenate: Callable[..., Any],
    zeros: Callable[..., Any],
) -> SimpleNamespace:
    table = {function: getattr(module, function.__name__) for function in _SAME}
    table |= {tanh: module.tanh, math.tanh: module.tanh, exp: module.exp, math.exp: module.exp, abs: module.abs} | own
    table[fma] = lambda a, b, c: a * b + c
    functions = {"concatenate": concatenate, "stack": module.stack, "zeros": zeros, "linear": _linear}
    functions |= {"split": lambda values, count: module.split(values, count, -1), "asarray": lambda array, like: array}
    functions |= {"values": np.asarray, "scan": partial(_loop, list, module.stack)}
    return SimpleNamespace(table=table, where=where, **functions)


def _loop(
    unstack: Callable[..., Any],
    stack: Callable[..., Any],
    step: Callable[..., tuple[Any, Any]],
    carry: Any,
    arrays: list[Any],
    reverse: bool,
) -> tuple[Any, tuple[Any, ...]]:
    """Run `step(carry, *values)` -> (carry, results) for each step of the arrays; return the carry and the results of
    all steps, stacked (none of no steps)."""
    found, each = [], [one if isinstance(one, np.ndarray) else unstack(one) for one in arrays]
    steps = range(len(each[0]))
    for t in reversed(steps) if reverse else steps:
        carry, results = step(carry, *(one[t] for one in each))
        found.append(results)
    return carry, tuple(map(stack, zip(*(found[::-1] if reverse else found), strict=True)))


def _linear(x: Any, matrix: Any, bias: Any) -> Any:
    total = x @ matrix.T
    return total if bias is None else total + bias


CHOOSING = {
    max: lambda where: lambda a, b, like: where(b > a, b, a, like),
    min: lambda where: lambda a, b, like: where(b < a, b, a, like),
    clip: lambda where: lambda x, low, high, like: where(x < low, low, where(x > high, high, x, like), like),
}
"""Functions that choose: they take an array for its dtype, too."""
