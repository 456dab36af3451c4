"""One function for each backend: a network with flat weights on its tensors, time first, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import keras

from rnnkit.keras.call import Call, Run
from rnnkit.network import engine


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hide a method from `torch.compile`, which would look into what makes a call."""
    if keras.config.backend() != "torch":
        return function
    import torch

    return torch.compiler.disable(function)


def _as_run(function: Callable[..., Any]) -> Run:
    """Return a function that takes states one by one, from one that takes hx and cx as `rnnkit.infer` does."""

    def run(call: Call) -> tuple[Any, list[Any]]:
        hx, *others = call.states
        cx = tuple(others) if len(others) > 1 else (*others, None)[0]
        seed = {} if call.seed is None else {"seed": call.seed}
        y, hy, cy = function(call.desc, call.w, call.x, hx, cx, mask=call.mask, **seed)[:3]
        return y, [hy, *(cy if isinstance(cy, tuple) else () if cy is None else (cy,))]

    return run


def _numpy() -> Run:
    def run(*arguments: Any, seed: Any = None, **options: Any) -> Any:
        if seed is None:
            return engine.infer(*arguments, **options)
        return engine.forward(*arguments, seed=int(seed), **options)

    return _as_run(run)


def _torch() -> Run:
    from rnnkit.torch.flat import run

    return lambda call: run(*call[:6])


def _jax() -> Run:
    from rnnkit.jax import rnn

    return _as_run(rnn)


def _tensorflow() -> Run:
    from rnnkit.keras.tensorflow import run

    return run


_MAKERS = {"numpy": _numpy, "torch": _torch, "jax": _jax, "tensorflow": _tensorflow}


@cache
def _made(backend: str) -> Run | None:
    return _MAKERS[backend]() if backend in _MAKERS else None


def run_of_backend() -> Run | None:
    """Return the function of the backend that Keras runs on; None if there is none."""
    return _made(keras.config.backend())
