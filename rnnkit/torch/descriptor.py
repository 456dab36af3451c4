"""Descriptors of modules, and the string encoding of modes for modules and operators."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.modes import deserialized, text_in_process
from rnnkit.errors import message

DTYPES = {torch.float16: "float16", torch.float32: "float32", torch.float64: "float64"}

_cells: dict[str, Any] = {}  # mode text -> cell, with its parameters
_classes: dict[str, type] = {}  # name -> class of a cell


class ModuleConfig(NamedTuple):
    """Configuration of a module in PyTorch's names, the dropout of the call, and whether the module is training."""

    mode: str
    input_size: int
    hidden_size: int
    num_layers: int
    bidirectional: bool
    bias: bool
    proj_size: int
    dropout: float
    training: bool
    learned_initial_state: bool = False


@lru_cache(256)
def descriptor(network: ModuleConfig, dtype: torch.dtype) -> RNNDescriptor:
    """Return the descriptor of a module whose parameters have this dtype."""
    if dtype not in DTYPES:
        expected = f"be {', '.join(map(str, DTYPES))}"
        raise TypeError(message("forward", "dtype of the parameters", expected, dtype))
    options = network._asdict() | {"mode": _mode_of(network.mode), "bias": "both" if network.bias else "none"}
    del options["training"]
    desc = RNNDescriptor(**options | {"proj_size": network.proj_size or None}, dtype=DTYPES[dtype])
    return desc if network.training else desc.evaluating


def mode_text(mode: Any) -> str:
    """Return the string encoding of a mode: PyTorch's name, or for a cell a text that this process can resolve.

    Another process can resolve it for a shipped cell, and for a custom cell after creating a module of its class.
    """
    if isinstance(mode, str):
        return mode.upper()
    text = text_in_process(mode)
    _cells[text], _classes[type(mode).__name__] = mode, type(mode)
    return text


def _mode_of(text: str) -> Any:
    if not text.startswith("{"):
        return text.lower()
    if text in _cells:
        return _cells[text]
    found = json.loads(text)
    kind = _classes.get(found["cell"]) if found["source"] is not None else None
    try:
        return deserialized(found, kind)
    except ValueError as error:
        cure = f"create an rnnkit.torch.Recurrent of {found['cell']} first"
        raise ValueError(message("forward", "cell", "be known in this process", error, cure)) from None
