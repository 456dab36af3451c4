"""The class of each mode, with the name that torch.nn and most other frameworks use, and what its arguments may be."""

from __future__ import annotations

from typing import Any

from rnnkit.errors import message, wrong_type

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


def check_torch_options(name: str, options: dict[str, Any]) -> None:
    """Remove PyTorch options that have no effect here; raise for those that would change the meaning."""
    batch_first = options.pop("batch_first", False)
    if not isinstance(batch_first, bool):
        raise wrong_type(name, "batch_first", "a bool", batch_first)
    if batch_first:
        cure = "rnnkit takes x of shape (T, N, I): pass numpy.swapaxes(x, 0, 1)"
        raise ValueError(message(name, "batch_first", "be False", batch_first, cure))
    if "nonlinearity" in options:
        raise TypeError(message(name, "nonlinearity", "be left out", repr(options["nonlinearity"]), "only RNN has it"))
