"""One function for each backend: a network with flat weights on its tensors, time first, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import keras

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.network import engine

Run = Callable[[RNNDescriptor, Any, Any, Sequence[Any], Any], tuple[Any, list[Any]]]
"""desc, w, x (T, N, I), the initial states (1, N, H), mask (T, N) bool or None -> y, the states after the last step."""


def _as_run(function: Callable[..., Any]) -> Run:
    """Return a function that takes states one by one, from one that takes hx and cx as `rnnkit.infer` does."""

    def run(desc: RNNDescriptor, w: Any, x: Any, states: Sequence[Any], mask: Any) -> tuple[Any, list[Any]]:
        hx, *others = states
        cx = tuple(others) if len(others) > 1 else (*others, None)[0]
        y, hy, cy = function(desc, w, x, hx, cx, mask=mask)
        return y, [hy, *(cy if isinstance(cy, tuple) else () if cy is None else (cy,))]

    return run


def _torch() -> Run:
    from rnnkit.torch.flat import run

    return run


def _jax() -> Run:
    from rnnkit.jax import rnn

    return _as_run(rnn)


_MAKERS = {"numpy": lambda: _as_run(engine.infer), "torch": _torch, "jax": _jax}


@cache
def _made(backend: str) -> Run | None:
    return _MAKERS[backend]() if backend in _MAKERS else None


def run_of_backend() -> Run | None:
    """Return the function of the backend that Keras runs on; None if there is none."""
    return _made(keras.config.backend())
