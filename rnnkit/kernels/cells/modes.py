"""The modes: under which name a network's cell is asked for, which options it has, and what others call it."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .gru import ResetAfterGRU, ResetBeforeGRU
from .lstm import LSTM
from .vanilla import ReLU, Tanh


class Mode(NamedTuple):
    """A cell under its name.

    Attributes
    ----------
    cell : callable
        The cell of an `RNNDescriptor`.
    options : tuple of str
        Those of the descriptor's options that not every mode has.
    cudnn : str
        Its name in cudnnRNNMode_t, without the prefix.
    network : tuple of str and dict
        The class, in rnnkit and in torch.nn, and its arguments.
    onnx : tuple of str, str and dict
        The operator, its order of the gates by our names, and its attributes; a list holds one value a direction.
    """

    cell: Callable[[Any], Any]
    options: tuple[str, ...]
    cudnn: str
    network: tuple[str, dict[str, Any]]
    onnx: tuple[str, str, dict[str, Any]]


def _vanilla(cell, name):
    onnx = "RNN", "a", {"activations": [name.capitalize()]}
    return Mode(lambda desc: cell(), (), f"RNN_{name.upper()}", ("RNN", {"nonlinearity": name}), onnx)


def _lstm(desc):
    real, (low, high) = desc.np_dtype.type, desc.cell_clip or (-math.inf, math.inf)
    return LSTM(desc.cell_clip is not None, real(low), real(high))


def _gru(desc):
    return ResetAfterGRU() if desc.reset_after else ResetBeforeGRU()


MODES = {
    "rnn_relu": _vanilla(ReLU, "relu"),
    "rnn_tanh": _vanilla(Tanh, "tanh"),
    "lstm": Mode(_lstm, ("proj_size", "cell_clip"), "LSTM", ("LSTM", {}), ("LSTM", "i o f g", {})),
    "gru": Mode(_gru, ("reset_after",), "GRU", ("GRU", {}), ("GRU", "z r n", {"linear_before_reset": 1})),
}


def modes_with(option):
    """Names of the modes that have an option."""
    return [name for name, mode in MODES.items() if option in mode.options]


def mode_of(network, **arguments):
    """Name of the mode that a class of networks has with these arguments."""
    return next(name for name, mode in MODES.items() if mode.network == (network, arguments))
