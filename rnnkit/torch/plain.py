"""Calls with plain tensors on the CPU, as nearly all are: recognised in a few checks, with the parameters where they
were in the call before. Everything else, wrong input too, is left to `modules`.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from rnnkit.call import debugging
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import num_weights, weight_layout
from rnnkit.network import engine
from rnnkit.torch.layout import ONE_STEP, STEPS_FIRST, Layout, joined

_is_compiled, _compiler = torch.compiler.is_dynamo_compiling, torch._C._dynamo.eval_frame.get_eval_frame_callback
_tracing, _num_modes = torch._C._get_tracing_state, torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
_MOST_SIZES, _MOST_BYTES = 256, 1 << 26
"""Of which a module keeps what was prepared, and of the memory of their idle calls, about at most."""
_DTYPES = torch.float32, torch.float64  # that the CPU has
_NO_STATES = None, None
_STRIDED = torch.strided


class Found(NamedTuple):
    """A module's parameters, which lie in one buffer: where each was, so that a call can see that they still do."""

    mode: str  # of the module, in PyTorch's names
    drawn: tuple[float, bool]  # by its calls, as the module says it
    desc: RNNDescriptor
    dtype: torch.dtype
    addresses: list[int]
    places: list[tuple[str, int, torch.Size]]  # name, address and shape of each, in the buffer's order
    weights: np.ndarray  # the buffer
    memory: Tensor  # keeps it alive, whatever other threads do to the module while a call reads it
    sizes: dict[Any, Size]
    joined: deque[Any]  # the last `chains.Joined`
    spare: deque[np.ndarray]  # memory of the weights' gradient, of which somebody may still have views


class Size(NamedTuple):
    """A size of a module's calls, and what is prepared for it."""

    layout: Layout
    states: Sequence[torch.Size]  # shapes of the initial ones
    cells: torch.Size | None  # of those beside h in one tensor
    threads: int
    is_small: bool  # whether a training call may be a `small.SmallRecurrence`
    idle: deque[Any]  # those of them that may be used again
    inference: Any
    gathered: deque[Any] | None  # `Gathered` ones that may be used again; None where that does not pay

    def idle_bytes(self) -> int:
        """Of the memory of calls that may be used again."""
        return sum(call.nbytes for calls in (self.idle, self.inference.idle) for call in tuple(calls))


class Place:
    """Where a module keeps what was found. A copy or a pickle of the module has an empty one."""

    def __init__(self) -> None:
        self.found: Found | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Place, ()


NOWHERE = Place()


def find(
    mode: str, drawn: tuple[float, bool], desc: RNNDescriptor, names: Sequence[str], parameters: dict[str, Any]
) -> Found | None:
    """Look at a module's parameters, named in the buffer's order; None if they are not in one buffer on the CPU."""
    ordered = [parameters.get(name) for name in names]
    first = ordered[0]
    if any(type(one) is not Parameter for one in ordered) or not first.is_cpu or first.dtype not in _DTYPES:
        return None
    if not are_neighbours(desc, ordered):
        return None
    addresses, size = [one.data_ptr() for one in ordered], num_weights(desc)
    memory: Any = (ctypes.c_byte * (size * first.element_size())).from_address(addresses[0])
    weights = np.frombuffer(memory, desc.np_dtype)
    places = [(name, one.data_ptr(), one.shape) for name, one in zip(names, ordered, strict=True)]
    kept = deque(maxlen=1), deque(maxlen=1)
    return Found(mode, drawn, desc, first.dtype, addresses, places, weights, first.detach(), {}, *kept)


def are_neighbours(desc: RNNDescriptor, parameters: Sequence[torch.Tensor]) -> bool:
    """Whether the parameters follow each other in memory as in the flat buffer; on a GPU, in one storage."""
    first = parameters[0]
    address, itemsize = first.data_ptr(), first.element_size()
    if first.dtype != getattr(torch, str(desc.dtype)):
        return False
    for (_, shape, start), one in zip(weight_layout(desc), parameters, strict=True):
        if one.data_ptr() != address + start * itemsize or one.shape != shape or not one.is_contiguous():
            return False
        if one.dtype != first.dtype:
            return False
    if first.device.type == "cpu":
        return True
    return first.untyped_storage().nbytes() >= (first.storage_offset() + num_weights(desc)) * itemsize


def are_there(found: Found, parameters: dict[str, Any]) -> list[Any] | None:
    """The parameters, in the buffer's order, if they have the memory, shape and dtype that they had; else None.

    Memory at the same address is on the same device. They were contiguous.
    """
    dtype, ordered = found.dtype, []
    for name, address, shape in found.places:
        one = parameters.get(name)
        if type(one) is not Parameter or one.data_ptr() != address or one.dtype is not dtype:
            return None
        if one.shape != shape or not one.is_contiguous():
            return None
        ordered.append(one)
    return ordered


def is_watched() -> bool:
    """Whether something traces or transforms calls, or `rnnkit.set_debug` is to look at them."""
    if _is_compiled() or _compiler() is not None or _num_modes() or _tracing() is not None:
        return True
    return _transform() is not None or debugging.is_on()


def size_of(found: Found, input: Any, order: int) -> Size | None:
    """The size of a call with this input; None where it is not a tensor as the network takes it."""
    if not _is_usual(input, found.dtype):
        return None
    key = input.shape, order, torch.get_num_threads()
    size = found.sizes.get(key)
    return _new_size(found, *key) if size is None else size


def _new_size(found: Found, shape: torch.Size, order: int, threads: int) -> Size | None:
    desc = found.desc
    if len(shape) != (2 if order == ONE_STEP else 3) or shape[-1] != desc.row_size:
        return None
    seq_len, batch_size = (1, shape[0]) if order == ONE_STEP else shape[:2] if order == STEPS_FIRST else shape[1::-1]
    rows = (batch_size,) if order == ONE_STEP else (desc.num_pseudo_layers, batch_size)
    states = [torch.Size((*rows, size)) for size in (desc.output_size, *(desc.hidden_size for _ in desc.states))]
    calls, own = engine.small_calls(), (desc, seq_len, batch_size)
    prepared = calls.is_small(*own), deque(), calls.PreparedInference(*own, threads)
    gathered = deque() if seq_len == 1 and calls.gathers(desc, batch_size) else None
    if len(found.sizes) >= _MOST_SIZES or sum(size.idle_bytes() for size in found.sizes.values()) > _MOST_BYTES:
        found.sizes.clear()
    cells = torch.Size((*rows, desc.states_size)) if desc.has_cell_state else None
    size = Size(Layout((seq_len, batch_size), order), states, cells, threads, *prepared, gathered)
    found.sizes[shape, order, threads] = size
    return size


def states_of(found: Found, size: Size, hx: Any) -> Sequence[Any] | None:
    """hx and cx of a call, or None of each; None where they are not tensors as the network takes them.

    Several states beside h are one cx.
    """
    if hx is None:
        return _NO_STATES
    shapes, dtype = size.states, found.dtype
    if len(shapes) == 1:
        return (hx, None) if _is_usual(hx, dtype) and hx.shape == shapes[0] else None
    if type(hx) is not tuple or len(hx) != len(shapes):
        return None
    for one, shape in zip(hx, shapes):  # noqa: B905 - they are as many
        if type(one) is not Tensor or one.dtype is not dtype or one.shape != shape or not one.is_cpu:
            return None
        if one.is_neg() or one.layout is not _STRIDED:
            return None
    return hx if len(hx) == 2 else (hx[0], joined(hx[1:]))


def _is_usual(tensor: Any, dtype: torch.dtype) -> bool:
    usual = type(tensor) is Tensor and tensor.dtype is dtype and tensor.is_cpu and not tensor.is_neg()
    return usual and tensor.layout is _STRIDED
