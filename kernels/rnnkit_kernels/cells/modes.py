"""Built-in modes: name -> cell and options.

The names that other libraries use are in `rnnkit.interop`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .gru import ResetAfterGRU, ResetBeforeGRU
from .lstm import LSTM
from .vanilla import ReLU, Tanh


class Mode(NamedTuple):
    """A named cell.

    Attributes
    ----------
    cell : callable
        Returns the cell for an `RNNDescriptor`.
    options : tuple of str
        The descriptor's options that this mode has and others lack.
    """

    cell: Callable[[Any], Any]
    options: tuple[str, ...] = ()


def _lstm(desc):
    real, (low, high) = desc.np_dtype.type, desc.cell_clip or (-math.inf, math.inf)
    return LSTM(desc.cell_clip is not None, real(low), real(high))


def _gru(desc):
    return ResetAfterGRU() if desc.reset_after else ResetBeforeGRU()


MODES = {
    "rnn_relu": Mode(lambda desc: ReLU()),
    "rnn_tanh": Mode(lambda desc: Tanh()),
    "lstm": Mode(_lstm, ("proj_size", "cell_clip")),
    "gru": Mode(_gru, ("reset_after",)),
}


def modes_with(option):
    """Return the names of the modes that have an option."""
    return [name for name, mode in MODES.items() if option in mode.options]
