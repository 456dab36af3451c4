"""Calls of plain tensors on the CPU, as nearly all are: told at a glance, and the weights found where they were.

Whatever is unusual, wrong input too, is left to `modules`, which looks closer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import num_weights, weight_layout

_is_compiled, _compiler = torch.compiler.is_dynamo_compiling, torch._C._dynamo.eval_frame.get_eval_frame_callback
_is_traced, _is_transformed = torch._C._get_tracing_state, torch._C._are_functorch_transforms_active
_num_modes = torch._C._len_torch_dispatch_stack


class Found(NamedTuple):
    """A network's parameters in one buffer, as they were when they were looked at."""

    desc: RNNDescriptor
    dtype: torch.dtype
    blocks: Sequence[tuple[str, int, torch.Size]]  # of each parameter, in the buffer's order: name, address and shape
    weights: np.ndarray  # the buffer, which `first` keeps alive
    first: Tensor


class Place:
    """Where a module keeps what was found; neither copies nor pickles of the module have it."""

    def __init__(self) -> None:
        self.found: Found | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Place, ()


def find(desc: RNNDescriptor, parameters: dict[str, Any]) -> Found | None:
    """Look at a module's parameters; None where they are not in one buffer."""
    layout = weight_layout(desc)
    first = parameters.get(layout[0].name)
    if type(first) is not Parameter or not first.is_cpu:
        return None
    itemsize, address, size = first.element_size(), first.data_ptr(), num_weights(desc)
    blocks = [(block.name, address + block.start * itemsize, torch.Size(block.shape)) for block in layout]
    memory: Any = (ctypes.c_byte * (size * itemsize)).from_address(address)
    found = Found(desc, first.dtype, blocks, np.frombuffer(memory, desc.np_dtype), first.detach())
    return found if still(found, parameters) is not None else None


def still(found: Found, parameters: dict[str, Any]) -> list[Parameter] | None:
    """The parameters in the buffer's order; None where one is not what and where it was."""
    ordered = []
    for name, address, shape in found.blocks:
        one = parameters.get(name)
        if type(one) is not Parameter or one.data_ptr() != address or one.dtype is not found.dtype:
            return None
        if one.shape != shape or not one.is_contiguous() or not one.is_cpu:
            return None
        ordered.append(one)
    return ordered


def is_plain(found: Found, input: Any, hx: Any, batch_first: bool) -> bool:
    """Whether an input and states are what the network takes, and nothing but their values is asked for."""
    if _is_compiled() or _compiler() is not None or _num_modes() or _is_transformed() or _is_traced() is not None:
        return False
    if forward_ad._current_level >= 0 or torch.is_autocast_enabled("cpu"):
        return False
    desc, dtype = found.desc, found.dtype
    if not _is_usual(input, dtype) or input.dim() != 3:
        return False
    shape = input.shape
    if shape[2] != desc.input_size or not (shape[0] and shape[1]):
        return False
    if hx is None:
        return True
    states = hx if desc.has_cell else (hx,)
    if type(states) is not tuple or len(states) != 1 + desc.has_cell:
        return False
    for state, size in zip(states, (desc.output_size, desc.hidden_size), strict=False):
        expected = desc.num_pseudo_layers, shape[0 if batch_first else 1], size
        if not _is_usual(state, dtype) or state.shape != expected:
            return False
    return True


def _is_usual(tensor: Any, dtype: torch.dtype) -> bool:
    if type(tensor) is not Tensor or tensor.dtype is not dtype or not tensor.is_cpu:
        return False
    return tensor.layout is torch.strided and not tensor.is_neg()
