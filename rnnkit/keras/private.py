"""What is used of Keras that is not public, and whether this Keras has it; 3.0.5 to 3.15 have."""

from __future__ import annotations

from functools import cache
from inspect import signature
from typing import Any

import keras

from rnnkit.errors import message

_LOOP = "self sequences initial_state mask training"
_INSIDE = {
    "LSTM.inner_loop": _LOOP, "GRU.inner_loop": _LOOP, "SimpleRNN.inner_loop": _LOOP, "Bidirectional.call": _LOOP,
    "LSTMCell.get_dropout_mask": "self step_input", "Layer._flatten_layers": "self include_self recursive",
}  # fmt: skip


@cache
def difference() -> str | None:
    """Return what differs in this Keras, so that its layers cannot be switched; None if nothing does."""
    for name, parameters in _INSIDE.items():
        kind, method = name.split(".")
        found = getattr(getattr(keras.layers, kind), method, None)
        if found is None or " ".join(signature(found).parameters) != parameters:
            return f"Keras {keras.__version__} has no {name}({', '.join(parameters.split()[1:])})"
    return None


class StaysInPython:
    """A layer that TensorFlow cannot export; a base before Keras's class."""

    # TensorFlow's XLA cannot run Python; Keras then compiles without it. Keras assigns True.
    supports_jit = property(lambda self: keras.config.backend() != "tensorflow", lambda self, value: None)

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> Any:
        """Refuse what `Model.export` and `tf.saved_model.save` ask for, which would load nowhere else."""
        if save_type == "savedmodel":
            cure = "call rnnkit.keras.restore(model) first"
            raise ValueError(message("export", "model", "have Keras's own layers", type(self).__name__, cure))
        return super()._trackable_children(save_type, **options)  # type: ignore[misc]


def layers_of(model: Any) -> list[Any]:
    """Return a layer and all layers within."""
    return list(model._flatten_layers())


def forget_functions(model: Any) -> None:
    """Forget what Keras has traced, which calls the former code, and whether TensorFlow's XLA may compile it."""
    if isinstance(model, keras.Model):
        model.train_function = model.test_function = model.predict_function = None
        if model._jit_compile and keras.config.backend() == "tensorflow":
            model.jit_compile = False  # assigning what it is does nothing
            model.jit_compile = True  # Keras warns, and takes False, if a layer does not support it
