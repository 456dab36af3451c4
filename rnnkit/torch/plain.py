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
    names: Sequence[str]  # of the parameters, in the buffer's order
    places: Sequence[tuple[int, torch.Size]]  # their addresses and shapes
    weights: np.ndarray  # the buffer: to be read only where the parameters are there still


class Place:
    """Where a module keeps what was found; neither copies nor pickles of the module have it."""

    def __init__(self) -> None:
        self.found: Found | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Place, ()


NOWHERE = Place()


def find(desc: RNNDescriptor, parameters: dict[str, Any]) -> Found | None:
    """Look at a module's parameters; None where they are not in one buffer."""
    layout = weight_layout(desc)
    ordered = [parameters.get(block.name) for block in layout]
    first = ordered[0]
    if type(first) is not Parameter or not first.is_cpu:
        return None
    itemsize, address, size = first.element_size(), first.data_ptr(), num_weights(desc)
    names, places = zip(
        *((block.name, (address + block.start * itemsize, torch.Size(block.shape))) for block in layout), strict=True
    )
    memory: Any = (ctypes.c_byte * (size * itemsize)).from_address(address)
    found = Found(desc, first.dtype, names, places, np.frombuffer(memory, desc.np_dtype))
    return found if are_there(found, ordered) else None


def are_there(found: Found, parameters: Sequence[Any]) -> bool:
    """Whether each of the parameters, in the buffer's order, is what and where it was."""
    for one, (address, shape) in zip(parameters, found.places, strict=True):
        if type(one) is not Parameter or one.data_ptr() != address or one.dtype is not found.dtype:
            return False
        if one.shape != shape or not one.is_contiguous() or not one.is_cpu:
            return False
    return True


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
