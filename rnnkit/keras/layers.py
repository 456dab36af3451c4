"""Keras's layers with the loop over the steps on the engine; all around it stays Keras's."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from rnnkit.descriptor.descriptor import HOST_DTYPES
from rnnkit.errors import message
from rnnkit.keras.backends import run_of_backend
from rnnkit.keras.cell import Cell
from rnnkit.keras.weights import network_of

PLAIN = {kind.__name__: kind for kind in (keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN)}
"""Keras's classes by name."""
_ACTIVATIONS = {"LSTM": ("tanh",), "GRU": ("tanh",), "SimpleRNN": ("tanh", "relu")}


class OnEngine:
    """Replaces the loop of a layer of Keras; a base before Keras's class."""

    kind_of_keras = ""  # name of Keras's class

    def inner_loop(self, sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> tuple[Any, Any, Any]:
        """Run the cell over the sequences (N, T, I); returns the last output, all of them and the states."""
        if why_not(self, training):
            return super().inner_loop(sequences, initial_state, mask, training=training)  # type: ignore[misc]
        states = list(initial_state) if isinstance(initial_state, (list, tuple)) else [initial_state]
        mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        return _run(self, sequences, states, mask, training)


def why_not(layer: Any, training: bool = False) -> str | None:
    """Return why a layer stays on Keras, in training or not; None if it does not."""
    cell, name = layer.cell, layer.kind_of_keras if isinstance(layer, OnEngine) else type(layer).__name__
    if run_of_backend() is None:
        return f"the backend is {keras.config.backend()}"
    if cell.compute_dtype not in HOST_DTYPES or cell.variable_dtype != cell.compute_dtype:
        return f"it computes in {cell.compute_dtype} with weights in {cell.variable_dtype}"
    if isinstance(cell, Cell):
        return None
    if layer.unroll and not _starts_from_zeros():
        return "unroll=True has results of its own where steps are masked"
    activation = getattr(cell.activation, "__name__", repr(cell.activation))
    if activation not in _ACTIVATIONS[name]:
        return f"its activation is {activation}"
    recurrent = getattr(cell, "recurrent_activation", None)
    if recurrent is not None and getattr(recurrent, "__name__", "") != "sigmoid":
        return f"its recurrent_activation is {getattr(recurrent, '__name__', repr(recurrent))}"
    if not training:
        return None
    if cell.recurrent_dropout:
        return "it has recurrent_dropout"
    if cell.dropout and getattr(cell, "dropout_mask_count", None) is not None:
        return "each gate has a dropout mask of its own (implementation=1)"
    return None


def _run(layer: Any, sequences: Any, states: list[Any], mask: Any, training: bool) -> tuple[Any, Any, Any]:
    cell = layer.cell
    desc, w = cell.network() if isinstance(cell, Cell) else network_of(layer)
    x = sequences
    if training and getattr(cell, "dropout", 0):
        x = x * ops.expand_dims(cell.get_dropout_mask(sequences[:, 0, :]), 1)
    mask = None if mask is None else ops.cast(mask, "bool")
    if layer.go_backwards:
        x, mask = ops.flip(x, 1), None if mask is None else ops.flip(mask, 1)
    marks = None if mask is None else ops.transpose(mask)
    states = [ops.expand_dims(one, 0) for one in states]
    y, after = run_of_backend()(desc, w, ops.swapaxes(x, 0, 1), states, marks)  # type: ignore[misc]
    after = [one[0] for one in after]
    if not layer.return_sequences:
        last = _last_output(layer, after[0], mask)
        return last, last, after
    outputs = ops.swapaxes(y, 0, 1)
    if mask is not None:
        outputs = _outputs(layer, outputs, mask)
    return outputs[:, -1], outputs, after


def _last_output(layer: Any, h: Any, mask: Any) -> Any:
    """Return the output after the last step: h, but for what a mask hides."""
    if mask is None:
        return h
    if layer.zero_output_for_mask:
        shown = mask[:, -1:]
    elif _starts_from_zeros():
        shown = ops.any(mask, 1, keepdims=True)
    else:
        return h
    return ops.where(shown, h, ops.zeros_like(h))


def _outputs(layer: Any, y: Any, mask: Any) -> Any:
    """Return the outputs (N, T, H) where y repeats what was before a masked step, at first the initial state."""
    if layer.zero_output_for_mask:
        shown = mask
    elif _starts_from_zeros():
        shown = ops.cumsum(ops.cast(mask, "int32"), 1) > 0
    else:
        return y
    return ops.where(ops.expand_dims(shown, -1), y, ops.zeros_like(y))


def _starts_from_zeros() -> bool:
    """Return whether the output before the first step that is not masked is 0; with JAX and NumPy it is the initial
    state."""
    return keras.config.backend() in ("torch", "tensorflow")


@keras.saving.register_keras_serializable("rnnkit")
class LSTM(OnEngine, keras.layers.LSTM):
    """`keras.layers.LSTM` on this engine: its arguments, variables and results."""

    kind_of_keras = "LSTM"


@keras.saving.register_keras_serializable("rnnkit")
class GRU(OnEngine, keras.layers.GRU):
    """`keras.layers.GRU` on this engine: its arguments, variables and results."""

    kind_of_keras = "GRU"


@keras.saving.register_keras_serializable("rnnkit")
class SimpleRNN(OnEngine, keras.layers.SimpleRNN):
    """`keras.layers.SimpleRNN` on this engine: its arguments, variables and results."""

    kind_of_keras = "SimpleRNN"


SWITCHED = {
    plain: type(name, (OnEngine, plain), {"kind_of_keras": name, "__module__": "keras.layers"})
    for name, plain in PLAIN.items()
}
"""The classes of switched layers: Keras writes these to files as its own, so that a file loads without rnnkit."""


@keras.saving.register_keras_serializable("rnnkit")
class RNN(OnEngine, keras.layers.RNN):
    """A layer of any cell of rnnkit: a mode, a published cell or one of your own.

    Parameters
    ----------
    cell : str or cell
        As for :class:`rnnkit.RNNDescriptor`: for example "gru", or ``rnnkit.cells.MinGRU()``.
    units : int
        H.
    seed : int, optional
        Of the initial weights; None draws one from Keras's generator.
    **options
        Those of ``keras.layers.RNN``: return_sequences, return_state, go_backwards, stateful, zero_output_for_mask.

    Raises
    ------
    TypeError, ValueError
        As for :class:`rnnkit.RNNDescriptor`; or the cell has side inputs or noises, which Keras does not pass, or the
        layer computes in another dtype than its weights have.
    RuntimeError
        Keras runs on a backend other than torch, jax and numpy.

    Examples
    --------
    >>> import numpy as np
    >>> from rnnkit.cells import MinGRU
    >>> layer = RNN(MinGRU(), 8, return_sequences=True)
    >>> tuple(layer(np.zeros((2, 5, 3), "float32")).shape)
    (2, 5, 8)
    """

    def __init__(self, cell: Any, units: int | None = None, seed: int | None = None, **options: Any) -> None:
        if run_of_backend() is None:
            raise RuntimeError(message("RNN", "backend", "be torch, jax or numpy", keras.config.backend()))
        own = {"dtype": options["dtype"]} if "dtype" in options else {}
        super().__init__(cell if isinstance(cell, Cell) else Cell(cell, units, seed, **own), **options)
        if reason := why_not(self):
            raise TypeError(message("RNN", "dtype", f"be {' or '.join(HOST_DTYPES)}", reason))
