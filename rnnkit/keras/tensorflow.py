"""A network on TensorFlow's tensors: the engine within `tf.numpy_function`, with a custom gradient.

What backward reads again is one of the tensors, so that TensorFlow owns it: a call may have its backward never, once or
several times, and a graph may run in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rnnkit.call.options import options_of
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.errors import message
from rnnkit.keras.call import Call
from rnnkit.network import engine


def run(call: Call) -> tuple[Any, list[Any]]:
    """Run a network; returns y (T, N, D*H), or None if it is not read, and the states after the last step."""
    desc = call.desc if call.seed is not None else call.desc.evaluating
    options = [tf.constant(0, tf.int64) if call.seed is None else tf.cast(call.seed, tf.int64)]
    options += [] if call.mask is None else [call.mask]
    dtype, keeps = call.x.dtype, call.training or call.seed is not None

    @tf.custom_gradient
    def network(*tensors: Any) -> tuple[Any, Any]:
        shapes = _shapes(call)
        kinds = [dtype] * len(shapes) + [tf.uint8]

        def forward(*arrays: Any) -> Sequence[np.ndarray]:
            results = _forward(desc, keeps, arrays[: len(tensors)], *arrays[len(tensors) :])
            return results if call.sequences else results[1:]

        *results, kept = tf.numpy_function(forward, [*tensors, *options], kinds, stateful=False)

        def gradient(*cotangents: Any) -> Any:
            return _gradient(desc, kept, tensors, options, cotangents)

        for one, shape in zip(results, shapes, strict=True):
            one.set_shape(shape)
        return tuple(results), gradient

    found = network(*map(tf.convert_to_tensor, (call.w, call.x, *call.states)))  # not variables
    return (found[0], [*found[1:]]) if call.sequences else (None, [*found])


def _shapes(call: Call) -> list[Any]:
    steps, rows, _ = call.x.shape
    width = call.desc.num_directions * call.desc.output_size
    return [*([(steps, rows, width)] if call.sequences else []), *(one.shape for one in call.states)]


def _gradient(desc: RNNDescriptor, kept: Any, tensors: Sequence[Any], options: Sequence[Any], given: Any) -> Any:
    """Return the gradients of the weights, x and the states."""
    count = len(tensors)

    def backward(kept: Any, *arrays: Any) -> Sequence[np.ndarray]:
        first, stop = arrays[:count], count + len(given)
        unread = [None] * (count - 1 - len(given))  # that of y
        return _backward(desc, kept, first, [*unread, *arrays[count:stop]], *arrays[stop:])

    def refuse(*cotangents: Any) -> Any:
        cure = "call rnnkit.keras.restore for second derivatives"
        raise NotImplementedError(message("backward", "its results", "not be differentiated", "their gradient", cure))

    @tf.custom_gradient
    def gradients(*arrays: Any) -> tuple[Any, Any]:
        return tf.numpy_function(backward, [kept, *arrays, *options], [given[0].dtype] * count, stateful=False), refuse

    found = gradients(*tensors, *given)
    for one, like in zip(found, tensors, strict=True):
        one.set_shape(like.shape)
    return found


def _arguments(desc: RNNDescriptor, arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
    """Return w, x, hx and cx in the engine's form."""
    w, x, hx, *others = arrays
    return w, x, hx, (tuple(others) if len(others) > 1 else (*others, None)[0])


def _forward(
    desc: RNNDescriptor, keeps: bool, arrays: Sequence[np.ndarray], seed: Any, mask: Any = None
) -> list[np.ndarray]:
    given = _arguments(desc, arrays)
    if not keeps:
        return [*_as_list(*engine.infer(desc, *given, mask=mask)), np.empty(0, np.uint8)]
    y, hy, cy, workspace = engine.forward(desc, *given, mask=mask, seed=int(seed) if desc.draws else None)
    module = engine.cpu_module("kept")
    kept = np.empty(module.kept_nbytes(desc, *given[1].shape[:2], False), np.uint8)
    module.store(workspace, False, kept)
    return [*_as_list(y, hy, cy), kept]


def _as_list(first: Any, h: Any, others: Any) -> list[np.ndarray]:
    """Return arrays that TensorFlow may keep: none in the engine's memory, which later calls use."""
    found = first, h, *(others if isinstance(others, tuple) else () if others is None else (others,))
    return [one if one.flags.owndata else one.copy() for one in found]


def _backward(
    desc: RNNDescriptor, kept: Any, arrays: Any, cotangents: Any, seed: Any, mask: Any = None
) -> list[np.ndarray]:
    if not kept.size:  # of a call that did not expect a gradient
        *_, kept = _forward(desc, True, arrays, seed, mask)
    w, x, hx, cx = _arguments(desc, arrays)
    options = options_of("backward", desc, x.shape[0], x.shape[1], mask=mask)
    workspace = engine.cpu_module("kept").restored(desc, w, x, hx, cx, options, False, kept)
    dy, dhy, *dcy = cotangents
    dcy = tuple(dcy) if len(dcy) > 1 else (*dcy, None)[0]
    dx, dhx, dcx, dw = engine.gradients_of(desc, w, workspace, dy, dhy, dcy)
    return [dw, *_as_list(dx, dhx, dcx)]
