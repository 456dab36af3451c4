"""Keras's layers with the loop over the steps on the engine; all around it stays Keras's."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from rnnkit.descriptor.descriptor import HOST_DTYPES
from rnnkit.errors import message
from rnnkit.keras.backends import run_of_backend, untraced
from rnnkit.keras.call import Call
from rnnkit.keras.cell import Cell
from rnnkit.keras.networks import activation_of, descriptor_of, input_of, seed_of, weights_of
from rnnkit.keras.private import StaysInPython


class OnEngine(StaysInPython):
    """Replaces the loop of a layer of Keras; a base before Keras's class."""

    kind_of_keras = ""  # name of Keras's class

    @untraced
    def inner_loop(self, sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> tuple[Any, Any, Any]:
        """Run the cell over the sequences (N, T, I); returns the last output, all of them and the states."""
        mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        if why_not(self, masked=mask is not None) or _keras_is_faster(self, sequences, mask, training):
            return super().inner_loop(sequences, initial_state, mask, training=training)  # type: ignore[misc]
        states = list(initial_state) if isinstance(initial_state, (list, tuple)) else [initial_state]
        flips, mask = self.go_backwards, marks_of(mask)  # type: ignore[attr-defined]
        x = input_of(self, sequences, training)
        y, after = run_of_backend()(  # type: ignore[misc]
            Call(
                descriptor_of(self, training), weights_of(self, training), time_first(x, flips),
                [ops.expand_dims(one, 0) for one in states], time_first(mask, flips), seed_of(self, training), training,
                self.return_sequences,  # type: ignore[attr-defined]
            )
        )  # fmt: skip
        after = [one[0] for one in after]
        last, outputs = shown(self, y, after[0], mask if mask is None or not flips else ops.flip(mask, 1))
        return last, outputs, after


def why_not(layer: Any, masked: bool = False) -> str | None:
    """Return why a layer stays on Keras, in calls with a mask or in all; None if it does not."""
    cell = layer.cell
    if run_of_backend() is None:
        return f"the backend is {keras.config.backend()}"
    if cell.compute_dtype not in HOST_DTYPES or cell.variable_dtype != cell.compute_dtype:
        return f"it computes in {cell.compute_dtype} with weights in {cell.variable_dtype}"
    if isinstance(cell, Cell):
        return None
    for name in ("activation", "recurrent_activation"):
        function = getattr(cell, name, None)
        if function is not None and activation_of(function) is None:
            return f"its {name} is {getattr(function, '__name__', repr(function))}"
    if masked and layer.unroll and not starts_from_zeros():
        return "unroll=True has results of its own where steps are masked"
    return None


def _keras_is_faster(layer: Any, x: Any, mask: Any, training: bool) -> bool:
    """Return whether inference with few steps is left to Keras, as copies of the weights in each call cost more than
    the engine saves: 1.02 to 1.15 of Keras's time where this says so (AMD Zen 3, `python -m perf run
    --suite keras --threads 1`).
    """
    (rows, steps, _), backend, units = x.shape, keras.config.backend(), layer.cell.units
    if training or mask is not None or rows is None or steps is None:
        return False
    if backend == "tensorflow":
        return layer.kind_of_keras == "GRU" and steps < 16 and units >= 100
    return backend == "jax" and layer.kind_of_keras == "LSTM" and steps <= 50 and rows >= 8 and units <= 128


def marks_of(mask: Any) -> Any:
    """Return a mask as bool; None stays None."""
    return None if mask is None else ops.cast(mask, "bool")


def time_first(array: Any, flips: bool = False) -> Any:
    """Return (N, T, ...) as (T, N, ...), and reversed if it `flips`; None stays None."""
    if array is None:
        return None
    array = ops.swapaxes(array, 0, 1)
    return ops.flip(array, 0) if flips else array


def shown(layer: Any, y: Any, h: Any, mask: Any) -> tuple[Any, Any]:
    """Return the last output (N, H) and, with return_sequences, all of them (N, T, H), as a mask (N, T) shows them.

    y (T, N, H), or None without return_sequences, and h (N, H) repeat what was before a masked step, at first the
    initial state.
    """
    if not layer.return_sequences:
        last = h if mask is None else _last_output(layer, h, mask)
        return last, last
    outputs = ops.swapaxes(y, 0, 1)
    if mask is not None:
        outputs = _outputs(layer, outputs, mask)
    return outputs[:, -1], outputs


def _last_output(layer: Any, h: Any, mask: Any) -> Any:
    if layer.zero_output_for_mask:
        seen = mask[:, -1:]
    elif starts_from_zeros():
        seen = ops.any(mask, 1, keepdims=True)
    else:
        return h
    return ops.where(seen, h, ops.zeros_like(h))


def _outputs(layer: Any, y: Any, mask: Any) -> Any:
    if layer.zero_output_for_mask:
        seen = mask
    elif starts_from_zeros():
        seen = ops.cumsum(ops.cast(mask, "int32"), 1) > 0
    else:
        return y
    return ops.where(ops.expand_dims(seen, -1), y, ops.zeros_like(y))


def starts_from_zeros() -> bool:
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
        Keras runs on a backend other than torch, tensorflow, jax and numpy.

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
            raise RuntimeError(message("RNN", "backend", "be torch, tensorflow, jax or numpy", keras.config.backend()))
        own = {"dtype": options["dtype"]} if "dtype" in options else {}
        super().__init__(cell if isinstance(cell, Cell) else Cell(cell, units, seed, **own), **options)
        if reason := why_not(self):
            raise TypeError(message("RNN", "dtype", f"be {' or '.join(HOST_DTYPES)}", reason))
