"""Types for whoever checks his program: what the names of modes and options are, and what comes out of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Mode: TypeAlias = Literal["rnn_relu", "rnn_tanh", "lstm", "gru"]
Bias: TypeAlias = Literal["both", "input", "recurrent", "none"]
InputMode: TypeAlias = Literal["linear", "skip"]
HostDType: TypeAlias = Literal["float32", "float64"]
HalfDType: TypeAlias = Literal["float16", "bfloat16"]
Precision: TypeAlias = Literal["bfloat16", "int8"]
Initial: TypeAlias = Literal["zeros", "hx"]
DType: TypeAlias = HostDType | HalfDType | type[np.floating[Any]] | np.dtype[Any]

Cell: TypeAlias = tuple[Any, ...] | type[tuple[Any, ...]]
"""A cell with its parameters, or its class: named tuples under the decorator of :mod:`rnnkit.cells`."""

Floats: TypeAlias = "NDArray[np.floating[Any]]"  # imported, numpy.typing takes a fifth of the time of all of rnnkit
"""What goes into a network and comes out, of its dtype; a cupy.ndarray where a cupy.ndarray went in."""

States = TypeVar("States")
"""What a network has for cx and cy: None, `Floats`, or of a cell with several states a tuple of these."""


class RNNOptions(TypedDict, total=False):
    """Options of every network."""

    bias: Bias | bool
    input_mode: InputMode
    dropout: float
    dtype: DType
    allow_tf32: bool
    batch_first: Literal[False]


class GRUOptions(RNNOptions, total=False):
    """Those of a GRU."""

    reset_after: bool


class LSTMOptions(RNNOptions, total=False):
    """Those of an LSTM."""

    proj_size: int | None
    cell_clip: tuple[float, float] | None


class Options(GRUOptions, LSTMOptions, total=False):
    """Those of all networks; the descriptor refuses what does not go with the mode."""
