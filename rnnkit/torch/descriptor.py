"""The descriptor of a module's network."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.errors import message

DTYPES = {torch.float16: "float16", torch.float32: "float32", torch.float64: "float64"}


class Network(NamedTuple):
    """A module's numbers, in PyTorch's names, and the dropout of the call."""

    mode: str
    input_size: int
    hidden_size: int
    num_layers: int
    bidirectional: bool
    bias: bool
    proj_size: int
    dropout: float


@lru_cache(256)
def descriptor(network: Network, dtype: torch.dtype) -> RNNDescriptor:
    """Describe the network of a module whose parameters have this dtype."""
    if dtype not in DTYPES:
        expected = f"be {', '.join(map(str, DTYPES))}"
        raise TypeError(message("forward", "dtype of the parameters", expected, dtype))
    own = network._asdict() | {"mode": network.mode.lower(), "bias": "both" if network.bias else "none"}
    return RNNDescriptor(**own | {"proj_size": network.proj_size or None}, dtype=DTYPES[dtype])
