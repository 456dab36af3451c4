"""Switch the recurrent layers of a Keras model to the engine, and back.

All private names of Keras are used here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from rnnkit.common.acceleration import Acceleration
from rnnkit.errors import wrong_type
from rnnkit.keras.layers import SWITCHED, OnEngine, why_not


def accelerate(model: Any) -> Acceleration:
    """Make every `LSTM`, `GRU` and `SimpleRNN` of a model run on the engine.

    The layers stay the same objects, and so do their variables: only the class of a layer changes, to a subclass. A
    model is saved as before, in files that load without rnnkit. It may be called before or after `compile` and `fit`.

    Parameters
    ----------
    model : keras.Model or keras.layers.Layer
        Changed in place; it may itself be such a layer.

    Returns
    -------
    Acceleration
        Paths of the changed layers, and with the reason of those that stay on Keras, always or in training.

    Raises
    ------
    TypeError
        `model` is not a layer.
    """
    changed, left = [], {}
    for layer in _recurrent("accelerate", model):
        name = getattr(layer, "path", None) or layer.name
        kind = type(layer)
        if isinstance(layer, OnEngine):
            continue
        if kind not in SWITCHED:
            left[name] = f"it is a {kind.__name__}"
        elif reason := why_not(layer):
            left[name] = reason
        else:
            object.__setattr__(layer, "__class__", SWITCHED[kind])
            changed.append(name)
            if reason := why_not(layer, training=True):
                left[name] = f"in training: {reason}"
    if changed:
        _forget_functions(model)
    return Acceleration(tuple(changed), left)


def restore(model: Any) -> tuple[str, ...]:
    """Switch all layers that `accelerate` switched back to Keras's classes.

    Parameters
    ----------
    model : keras.Model or keras.layers.Layer
        Changed in place.

    Returns
    -------
    tuple of str
        Paths of the layers that were changed.

    Raises
    ------
    TypeError
        `model` is not a layer.
    """
    plain_of = {switched: plain for plain, switched in SWITCHED.items()}
    changed = []
    for layer in _recurrent("restore", model):
        if type(layer) in plain_of:
            object.__setattr__(layer, "__class__", plain_of[type(layer)])
            changed.append(getattr(layer, "path", None) or layer.name)
    if changed:
        _forget_functions(model)
    return tuple(changed)


def _recurrent(function: str, model: Any) -> Iterator[Any]:
    if not isinstance(model, keras.layers.Layer):
        raise wrong_type(function, "model", "a keras.Model or a layer", model)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.RNN):
            yield layer


def _forget_functions(model: Any) -> None:
    """Forget what Keras has traced, which calls the former code."""
    if isinstance(model, keras.Model):
        model.train_function = model.test_function = model.predict_function = None
