"""Switch the recurrent layers of a Keras model to the engine, and back."""

from __future__ import annotations

from typing import Any

import keras

from rnnkit.common.acceleration import Acceleration
from rnnkit.errors import wrong_type
from rnnkit.keras.bidirectional import OnEngineBothWays
from rnnkit.keras.layers import OnEngine, why_not
from rnnkit.keras.private import difference, forget_functions, layers_of


def _switched(base: type, *names: str) -> dict[type, type]:
    """Return Keras's classes and those of switched layers, which Keras writes to files as its own: a file loads without
    rnnkit."""
    kinds = [getattr(keras.layers, name) for name in names]
    own = {"__module__": "keras.layers"}
    return {kind: type(kind.__name__, (base, kind), own | {"kind_of_keras": kind.__name__}) for kind in kinds}


_RECURRENT = _switched(OnEngine, "LSTM", "GRU", "SimpleRNN")
_WRAPPERS = _switched(OnEngineBothWays, "Bidirectional")


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
        Paths of the changed layers, and with the reason of those that stay on Keras, always or with a mask.

    Raises
    ------
    TypeError
        `model` is not a layer.
    """
    _check("accelerate", model)
    if reason := difference():
        return Acceleration((), {_name(model): reason})
    changed, left = [], {}
    for layer in layers_of(model):
        kind, name = type(layer), _name(layer)
        if isinstance(layer, OnEngine) or not isinstance(layer, keras.layers.RNN):
            continue
        if kind not in _RECURRENT:
            left[name] = f"it is a {kind.__name__}"
        elif reason := why_not(layer):
            left[name] = reason
        else:
            _switch(layer, _RECURRENT[kind])
            changed.append(name)
            if reason := why_not(layer, masked=True):
                left[name] = f"with a mask: {reason}"
    for layer in layers_of(model):
        if type(layer) in _WRAPPERS and isinstance(layer.forward_layer, OnEngine):
            _switch(layer, _WRAPPERS[type(layer)])
    if changed:
        forget_functions(model)
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
    plain_of = {switched: plain for plain, switched in (_RECURRENT | _WRAPPERS).items()}
    changed = []
    _check("restore", model)
    for layer in [] if difference() else layers_of(model):
        if type(layer) in plain_of:
            _switch(layer, plain_of[type(layer)])
            changed += [_name(layer)] if isinstance(layer, keras.layers.RNN) else []
    if changed:
        forget_functions(model)
    return tuple(changed)


def _check(function: str, model: Any) -> None:
    if not isinstance(model, keras.layers.Layer):
        raise wrong_type(function, "model", "a keras.Model or a layer", model)


def _name(layer: Any) -> str:
    return getattr(layer, "path", None) or layer.name


def _switch(layer: Any, kind: type) -> None:
    object.__setattr__(layer, "__class__", kind)
