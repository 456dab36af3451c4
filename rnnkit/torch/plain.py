"""Fast path for calls with plain CPU tensors and parameters that have not moved, recognised in a few checks.

Everything else, including invalid input, takes the general path of `calls`.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from rnnkit.call import debugging
from rnnkit.common.lazy import lazy
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import num_weights, weight_layout
from rnnkit.network import engine
from rnnkit.torch.layout import ONE_STEP, STEPS_FIRST, Layout, concatenate_states

_is_compiled = torch.compiler.is_dynamo_compiling
# What compiles the frames that run, or None; PyTorch 2.4 does not tell: there dynamo counts as soon as it is imported.
_compiler = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: sys.modules.get("torch._dynamo"))
_tracing, _num_modes = torch._C._get_tracing_state, torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
_MAX_SIZES = 256  # prepared sizes of a module
_DTYPES = torch.float32, torch.float64  # supported on the CPU
_NO_STATES = None, None
_STRIDED = torch.strided


class FlatParameters(NamedTuple):
    """A module's parameters in one flat buffer, with their addresses, to check that they have not moved."""

    drawn: tuple[float, bool]  # the module's `_rnnkit_drawn`
    desc: RNNDescriptor
    dtype: torch.dtype
    addresses: list[int]
    places: list[tuple[str, Parameter, int, torch.Size]]  # name, itself, address and shape, in the buffer's order
    weights: np.ndarray  # the buffer
    aliases: list[Tensor]  # `aliases_of` the parameters; they keep the buffer alive
    reads: BackwardReadsCache
    sizes: dict[Any, PreparedSize]
    chains: deque[Any]  # the last `chains.ChainParameters`
    spare: deque[Any]  # the last `gradient_memory.Gradient`, of which there may still be views


class BackwardReads(NamedTuple):
    """The blocks whose values a backward reads again."""

    numbers: Sequence[int]  # in the buffer's order
    aliases: list[Tensor]
    addresses: list[int]


class BackwardReadsCache(dict[tuple[bool, bool], BackwardReads]):
    """The `BackwardReads` of a network by (wants_dx, wants_dhx), as in `read_by_backward`; made when first needed."""

    def __init__(self, desc: RNNDescriptor, aliases: list[Tensor], addresses: list[int]) -> None:
        self._of = desc, aliases, addresses

    def __missing__(self, wanted: tuple[bool, bool]) -> BackwardReads:
        desc, aliases, addresses = self._of
        numbers = read_by_backward(desc, *wanted)
        lists = [aliases[number] for number in numbers], [addresses[number] for number in numbers]
        reads = self[wanted] = BackwardReads(numbers, *lists)
        return reads


class PreparedSize:
    """Calls of one input size. Each part is prepared when a call first needs it: a program that trains prepares no
    inference."""

    def __init__(self, desc: RNNDescriptor, shape: tuple[int, int], order: int, threads: int) -> None:
        self.layout, self.threads, self._problem = Layout(shape, order), threads, (desc, *shape)
        self._rows = shape[1:] if order == ONE_STEP else (desc.num_pseudo_layers, shape[1])

    @lazy
    def states(self) -> Sequence[torch.Size]:
        """Shapes of the initial states."""
        desc, *_ = self._problem
        sizes = desc.output_size, *(desc.hidden_size for _ in desc.states)
        return [torch.Size((*self._rows, size)) for size in sizes]

    @lazy
    def cells(self) -> torch.Size | None:
        """Shape of the states other than h, concatenated."""
        desc, *_ = self._problem
        return torch.Size((*self._rows, desc.states_size)) if desc.has_cell_state else None

    @lazy
    def calls(self) -> Any:
        """`PreparedCalls` of training; None if they run with a workspace."""
        prepared = engine.cpu_module("prepared")
        return prepared.PreparedCalls(*self._problem, self.threads) if prepared.is_prepared(*self._problem) else None

    @lazy
    def inference(self) -> Any:
        """`PreparedInference`."""
        return engine.cpu_module("prepared").PreparedInference(*self._problem)

    @lazy
    def gathered(self) -> deque[Any] | None:
        """`Gathered` buffers that can be reused; None where gathering does not pay."""
        desc, seq_len, batch_size = self._problem
        return deque() if seq_len == 1 and engine.cpu_module("prepared").gathers(desc, batch_size) else None


class ParameterCache:
    """What a module caches: its `FlatParameters`, and quantized weights. Copies and pickles of it get an empty one."""

    def __init__(self) -> None:
        self.flat: FlatParameters | None = None
        self.packed: Any = None  # `quantized.Packed`

    def __reduce__(self) -> tuple[Any, ...]:
        return ParameterCache, ()


EMPTY_CACHE = ParameterCache()


def find_flat(
    drawn: tuple[float, bool], desc: RNNDescriptor, names: Sequence[str], parameters: dict[str, Any]
) -> FlatParameters | None:
    """Locate a module's parameters, named in the buffer's order; None if they are not in one buffer on the CPU."""
    ordered = [parameters.get(name) for name in names]
    first = ordered[0]
    if desc.learned_initial_state:  # only calls with a workspace have gradients of them
        return None
    if any(type(one) is not Parameter for one in ordered) or not first.is_cpu or first.dtype not in _DTYPES:
        return None
    if not are_neighbours(desc, ordered):
        return None
    aliases, size = aliases_of(ordered), num_weights(desc)
    addresses = [one.data_ptr() for one in aliases]
    data: Any = (ctypes.c_byte * (size * first.element_size())).from_address(addresses[0])
    weights = np.frombuffer(data, desc.np_dtype)
    places = [(*one, ordered[number].shape) for number, one in enumerate(zip(names, ordered, addresses, strict=True))]
    own: tuple[Any, ...] = BackwardReadsCache(desc, aliases, addresses), {}, deque(maxlen=1), deque(maxlen=1)
    return FlatParameters(drawn, desc, first.dtype, addresses, places, weights, aliases, *own)


def aliases_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors with the memory and the version counters of the parameters, for autograd to save.

    They stay with this memory when a parameter is assigned other `data`: backward reads the weights of its forward.
    """
    return [one.detach() for one in parameters]


@lru_cache(256)
def read_by_backward(desc: RNNDescriptor, wants_dx: bool, wants_dhx: bool) -> Sequence[int]:
    """Return the numbers of the blocks whose values backward reads; as in PyTorch, the others may change before it.

    It reads no bias, the first layer's input weights only for dx, and the recurrent weights only for gradients of
    states (`wants_dhx`: there are several steps, or hx requires a gradient), unless a cell has products inside a step.
    """
    has_gates_only = isinstance(desc.mode, str)
    unread = ["bias_"] + ["weight_ih_l0"] * (not wants_dx) + ["weight_hh_l"] * (has_gates_only and not wants_dhx)
    return [number for number, block in enumerate(weight_layout(desc)) if not block.name.startswith(tuple(unread))]


def are_neighbours(desc: RNNDescriptor, parameters: Sequence[torch.Tensor]) -> bool:
    """Whether the parameters are adjacent in memory, as in the flat buffer; on a GPU, in one storage."""
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


def still_valid(flat: FlatParameters, parameters: dict[str, Any]) -> list[Any] | None:
    """Return the parameters in the buffer's order if they are the same ones in the same memory; else None.

    The device needs no check: the address is the same.
    """
    dtype, ordered = flat.dtype, []
    for name, parameter, address, shape in flat.places:
        one = parameters.get(name)
        if one is not parameter or one.data_ptr() != address or one.dtype is not dtype:
            return None
        if one.shape != shape or not one.is_contiguous():
            return None
        ordered.append(one)
    return ordered


def is_traced_or_debugged() -> bool:
    """Whether calls are traced or transformed, or `rnnkit.set_debug` is on."""
    if forward_ad._current_level >= 0:
        return True
    if _is_compiled() or _compiler() is not None or _num_modes() or _tracing() is not None:
        return True
    return _transform() is not None or debugging.is_on()


def size_of(flat: FlatParameters, input: Any, order: int) -> PreparedSize | None:
    """Return the prepared size of a call; None if the input is not a plain tensor of the right kind."""
    if not _is_usual(input, flat.dtype):
        return None
    key = input.shape, order, torch.get_num_threads()
    size = flat.sizes.get(key)
    return _new_size(flat, *key) if size is None else size


def _new_size(flat: FlatParameters, shape: torch.Size, order: int, threads: int) -> PreparedSize | None:
    if len(shape) != (2 if order == ONE_STEP else 3) or shape[-1] != flat.desc.row_size:
        return None
    seq_len, batch_size = (1, shape[0]) if order == ONE_STEP else shape[:2] if order == STEPS_FIRST else shape[1::-1]
    if len(flat.sizes) >= _MAX_SIZES:
        flat.sizes.clear()
    size = flat.sizes[shape, order, threads] = PreparedSize(flat.desc, (seq_len, batch_size), order, threads)
    return size


def states_of(flat: FlatParameters, size: PreparedSize, hx: Any) -> Sequence[Any] | None:
    """Return hx and cx of a call, each possibly None; None if they are not plain tensors of the right kind.

    Several states other than h are concatenated to one cx.
    """
    if hx is None:
        return _NO_STATES
    shapes, dtype = size.states, flat.dtype
    if len(shapes) == 1:
        return (hx, None) if _is_usual(hx, dtype) and hx.shape == shapes[0] else None
    if type(hx) is not tuple or len(hx) != len(shapes):
        return None
    for state, shape in zip(hx, shapes):  # noqa: B905 - same length
        if type(state) is not Tensor or state.dtype is not dtype or state.shape != shape or not state.is_cpu:
            return None
        if state.is_neg() or state.layout is not _STRIDED:
            return None
    return hx if len(hx) == 2 else (hx[0], concatenate_states(hx[1:]))


def _is_usual(tensor: Any, dtype: torch.dtype) -> bool:
    usual = type(tensor) is Tensor and tensor.dtype is dtype and tensor.is_cpu and not tensor.is_neg()
    return usual and tensor.layout is _STRIDED
