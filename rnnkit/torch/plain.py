"""Calls with plain tensors on the CPU, as nearly all are: recognised in a few checks, with the parameters where they
were in the call before. Everything else, wrong input too, is left to `modules`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import num_weights, weight_layout

_is_compiled, _compiler = torch.compiler.is_dynamo_compiling, torch._C._dynamo.eval_frame.get_eval_frame_callback
_tracing, _num_modes = torch._C._get_tracing_state, torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack


class Found(NamedTuple):
    """A module's parameters, which lie in one buffer: where each was, so that a call can see that they still do."""

    desc: RNNDescriptor
    dtype: torch.dtype
    names: Sequence[str]  # of the parameters, in the buffer's order
    addresses: list[int]
    shapes: list[torch.Size]
    weights: np.ndarray  # the buffer, not kept alive by this: read it only after `are_there`
    sizes: dict[Any, Any]  # of small training calls, see `small`


class Place:
    """Where a module keeps what was found. A copy or a pickle of the module has an empty one."""

    def __init__(self) -> None:
        self.found: Found | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Place, ()


NOWHERE = Place()


def find(desc: RNNDescriptor, parameters: dict[str, Any]) -> Found | None:
    """Look at a module's parameters; None if they do not follow each other in one buffer on the CPU."""
    layout = weight_layout(desc)
    ordered = [parameters.get(block.name) for block in layout]
    first = ordered[0]
    if type(first) is not Parameter or not first.is_cpu:
        return None
    itemsize, address, size = first.element_size(), first.data_ptr(), num_weights(desc)
    names, addresses = [block.name for block in layout], [address + block.start * itemsize for block in layout]
    shapes = [torch.Size(block.shape) for block in layout]
    memory: Any = (ctypes.c_byte * (size * itemsize)).from_address(address)
    found = Found(desc, first.dtype, names, addresses, shapes, np.frombuffer(memory, desc.np_dtype), {})
    return found if are_there(found, ordered) else None


def are_there(found: Found, parameters: Sequence[Any]) -> bool:
    """Whether the parameters, in the buffer's order, have the memory, shape and dtype that they had."""
    dtype = found.dtype
    for one, address, shape in zip(parameters, found.addresses, found.shapes, strict=True):
        if type(one) is not Parameter or one.data_ptr() != address or one.dtype is not dtype:
            return False
        if one.shape != shape or not one.is_contiguous() or not one.is_cpu:
            return False
    return True


def is_plain(found: Found, input: Any, hx: Any, batch_first: bool) -> bool:
    """Whether input and states are tensors as the network takes them, and nothing traces the call."""
    if _is_compiled() or _compiler() is not None or _num_modes() or _tracing() is not None or _transform() is not None:
        return False
    desc, dtype = found.desc, found.dtype
    if not _is_usual(input, dtype) or input.dim() != 3:
        return False
    shape = input.shape
    if shape[2] != desc.input_size:
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
    return type(tensor) is Tensor and tensor.dtype is dtype and tensor.is_cpu and not tensor.is_neg()
