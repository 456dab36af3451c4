"""The class name of each mode, in rnnkit, torch.nn and most other frameworks."""

from __future__ import annotations

from typing import Any

CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "rnn_relu": ("RNN", {"nonlinearity": "relu"}),
    "rnn_tanh": ("RNN", {"nonlinearity": "tanh"}),
    "lstm": ("LSTM", {}),
    "gru": ("GRU", {}),
}
"""Mode -> its class name, and the arguments that select the mode among those of the class."""


def class_of(mode: Any) -> str:
    """Return the class name of a mode; "Network" for a cell or mode without its own class."""
    return CLASSES[mode][0] if mode in CLASSES else "Network"


def mode_of(network: str, **arguments: Any) -> str:
    """Return the mode of a network class with these arguments."""
    return next(mode for mode, names in CLASSES.items() if names == (network, arguments))
