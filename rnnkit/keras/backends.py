"""One function for each backend: a network with flat weights on its tensors, time first, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import keras

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.network import engine

Run = Callable[[RNNDescriptor, Any, Any, Any, Any, Any], tuple[Any, Any, Any]]
"""desc, w, x (T, N, I), hx, cx (None without a cell state), mask (T, N) or None -> y, hy, cy."""


def _numpy(desc: RNNDescriptor, w: Any, x: Any, hx: Any, cx: Any, mask: Any) -> tuple[Any, Any, Any]:
    return engine.infer(desc, w, x, hx, cx, mask=mask)


@cache
def _of_torch() -> Run:
    from rnnkit.torch.function import rnn

    return rnn


@cache
def _of_jax() -> Run:
    from rnnkit.jax import rnn

    def run(desc: RNNDescriptor, w: Any, x: Any, hx: Any, cx: Any, mask: Any) -> tuple[Any, Any, Any]:
        return rnn(desc, w, x, hx, cx, mask=mask)

    return run


def run_of_backend() -> Run | None:
    """Return the function of the backend that Keras runs on; None if there is none."""
    makers = {"numpy": lambda: _numpy, "torch": _of_torch, "jax": _of_jax}
    make = makers.get(keras.config.backend())
    return None if make is None else make()
