"""Under which class a mode's networks are made: in rnnkit, in torch.nn, and in most other frameworks."""

from __future__ import annotations

from typing import Any

CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "rnn_relu": ("RNN", {"nonlinearity": "relu"}),
    "rnn_tanh": ("RNN", {"nonlinearity": "tanh"}),
    "lstm": ("LSTM", {}),
    "gru": ("GRU", {}),
}
"""Mode -> the name of its class, and the arguments that tell it from the other modes of that class."""


def class_of(mode: Any) -> str:
    """Return the name of the class of a mode; "Network" of a cell, or a mode, that has no class of its own."""
    return CLASSES[mode][0] if mode in CLASSES else "Network"


def mode_of(network: str, **arguments: Any) -> str:
    """Return the name of the mode that a class of networks has with these arguments."""
    return next(mode for mode, names in CLASSES.items() if names == (network, arguments))
