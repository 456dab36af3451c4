"""Type aliases for users of a type checker: modes, options, and the inputs and results of a network."""

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
Precision: TypeAlias = Literal["bfloat16", "bfloat16-native", "int8"]
CallPrecision: TypeAlias = Literal["bfloat16"]
Initial: TypeAlias = Literal["zeros", "hx"]
DType: TypeAlias = HostDType | HalfDType | type[np.floating[Any]] | np.dtype[Any]

Cell: TypeAlias = tuple[Any, ...] | type[tuple[Any, ...]]
"""A cell with its parameters, or its class: a NamedTuple class decorated with `rnnkit.cells.cell`."""

Floats: TypeAlias = "NDArray[np.floating[Any]]"  # importing numpy.typing would be a fifth of rnnkit's import time
"""Arrays of the network's dtype that it takes and returns: CuPy in, CuPy out."""

States = TypeVar("States")
"""Type of cx and cy: None, one array, or a tuple of arrays for a cell with several states."""


class RNNOptions(TypedDict, total=False):
    """Options of every mode."""

    bias: Bias | bool
    input_mode: InputMode
    dropout: float
    dtype: DType
    allow_tf32: bool
    learned_initial_state: bool
    batch_first: Literal[False]


class GRUOptions(RNNOptions, total=False):
    """Options of a GRU."""

    reset_after: bool


class LSTMOptions(RNNOptions, total=False):
    """Options of an LSTM."""

    proj_size: int | None
    cell_clip: tuple[float, float] | None


class Options(GRUOptions, LSTMOptions, total=False):
    """Options of any mode; the descriptor raises for an option that its mode does not have."""
