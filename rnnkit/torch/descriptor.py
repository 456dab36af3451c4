"""Descriptors of modules, and the string encoding of modes for modules and operators."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from rnnkit.descriptor import texts
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.errors import message

DTYPES = {torch.float16: "float16", torch.float32: "float32", torch.float64: "float64"}


class ModuleConfig(NamedTuple):
    """Configuration of a module in PyTorch's names, the dropout of the call, whether the module is training, and the
    precision of the call's products, "" for that of its dtype."""

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
    precision: str = ""


OTHER_DTYPES = (
    "convert the module with .float() or .bfloat16(), under torch.autocast if inputs are of half precision, or call "
    "rnnkit.torch.restore first and use PyTorch's own modules"
)
"""What to do about parameters in a dtype that the engine does not have."""


@lru_cache(256)
def descriptor(network: ModuleConfig, dtype: torch.dtype) -> RNNDescriptor:
    """Return the descriptor of a module whose parameters have this dtype: of float32 if they are bfloat16."""
    dtype = torch.float32 if dtype is torch.bfloat16 else dtype
    if dtype not in DTYPES:
        expected = f"be {', '.join(map(str, DTYPES))}"
        raise TypeError(message("forward", "dtype of the parameters", expected, dtype, OTHER_DTYPES))
    options = network._asdict() | {"mode": _mode_of(network.mode), "bias": "both" if network.bias else "none"}
    del options["training"], options["precision"]
    desc = RNNDescriptor(**options | {"proj_size": network.proj_size or None}, dtype=DTYPES[dtype])
    return desc if network.training else desc.evaluating


def mode_text(mode: Any) -> str:
    """Return the string encoding of a mode: PyTorch's name, or for a cell a text that this process can resolve."""
    return mode.upper() if isinstance(mode, str) else texts.mode_text(mode)


def _mode_of(text: str) -> Any:
    if not text.startswith("{"):
        return text.lower()
    return texts.mode_of(text, "create an rnnkit.torch.Recurrent of {cell} first")
