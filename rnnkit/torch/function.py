"""One call of the engine as a function of tensors, with its gradient for autograd."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import MutableSequence, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import num_weights, weight_layout
from rnnkit.errors import BackendError, message
from rnnkit.network import engine
from rnnkit.torch.plain import Found
from rnnkit.torch.threads import threads

_is_batched = torch._C._functorch.is_legacy_batchedtensor  # what `torch.autograd.grad(is_grads_batched=True)` makes


class Layout(NamedTuple):
    """How a batch of sequences stands in a tensor: (T, N, ...), (N, T, ...), or the valid steps alone, packed."""

    shape: tuple[int, int]  # T, N
    batch_first: bool = False
    rows: Any = None  # of a packed sequence: where step t of sequence n stands, t*N + n

    def time_major(self, array: Any) -> Any:
        """The array as (T, N, ...); what stands in the padding is anything."""
        if self.rows is not None:
            library = _library(array)
            padded = library.empty((*self.shape, array.shape[-1]), array.dtype)
            padded.reshape(-1, array.shape[-1])[library.asarray(self.rows)] = array
            return padded
        return array.swapaxes(0, 1) if self.batch_first else array

    def own(self, array: Any) -> Any:
        """An array (T, N, ...) as the tensor has it."""
        if self.rows is not None:
            return array.reshape(-1, array.shape[-1])[_library(array).asarray(self.rows)]
        return array.swapaxes(0, 1) if self.batch_first else array


class Call(NamedTuple):
    """What a call has beside tensors with a gradient."""

    desc: RNNDescriptor
    layout: Layout
    lengths: Any
    seed: int | None
    idle: MutableSequence[Any]  # workspaces whose memory may be used again
    found: Found | None = None  # where the parameters are


class Recurrence(torch.autograd.Function):
    """The network; the parameters, in the flat buffer's order, are arguments of their own, for each has a gradient."""

    @staticmethod
    def forward(ctx, call: Call, x, hx, cx, *parameters):
        """Run it and keep its workspace."""
        results, kept, ctx.weights = forward(call, x, hx, cx, parameters)
        # Autograd drops what is saved when nobody needs it any more, and says so where somebody does; and it notices
        # changes of x and the weights, which backward reads again. A gradient depends on initial states, too.
        states = (state if state is not None and state.requires_grad else None for state in (hx, cx))
        ctx.save_for_backward(x, kept, *states, *parameters)
        ctx.call, ctx.has_states = call, (hx is not None, cx is not None)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, dy, dhy, dcy=None):
        """Every gradient, those of the parameters in the memory of one flat buffer."""
        call, (x, kept, *others) = ctx.call, ctx.saved_tensors
        cotangents = dy, dhy, dcy
        if all(one is None for one in cotangents):
            return (None,) * len(ctx.needs_input_grad)
        refuse_transforms("backward", *cotangents)
        parameters = others[-len(weight_layout(call.desc)) :]
        dx, *states, dws = backward(call, kept, x, parameters, ctx.weights, *cotangents)
        states = [one if given else None for one, given in zip(states, ctx.has_states, strict=True)]
        return None, *once((dx, *states, *dws), x, *cotangents, *others)


def forward(call: Call, x, hx, cx, parameters) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, Any]:
    """Run the network for a backward to come.

    Returns its results; what it keeps, with a tensor for autograd to save; and the flat weights if they are a copy:
    the parameters' own memory may be elsewhere when backward runs.
    """
    with _resources(x):
        _alive = parameters[0].detach()  # with the memory of all, whatever other threads do to the module meanwhile
        weights, copied = (call.found.weights, False) if call.found else flat_weights(call.desc, parameters)
        arrays = weights, call.layout.time_major(to_array(x)), _optional(hx), _optional(cx)
        options = {"lengths": call.lengths, "seed": call.seed, "workspace": _idle_one(call.idle)}
        y, hy, cy, workspace = engine.forward(call.desc, *arrays, **options)
        if workspace.lease is not None:
            y.flags.writeable = True  # that of a small call is the user's
        y = call.layout.own(y)
        if workspace.lease is None or not y.flags.c_contiguous:
            y = y.copy(order="C")  # the workspace's own is read again, and the user may change his
        return _tensors(y, hy, cy), _kept(workspace, call.idle), weights if copied else None


def backward(call: Call, kept, x, parameters, weights, dy, dhy, dcy) -> tuple[Any, ...]:
    """The gradients of x, hx, cx (None without it) and a list of those of the parameters."""
    with _resources(x):
        weights = weights_now(call.desc, call.found, parameters) if weights is None else weights
        dy = None if dy is None else call.layout.time_major(to_array(dy))
        found = engine.backward(call.desc, weights, saved_by(kept).workspace, dy, _optional(dhy), _optional(dcy))
        dx, dhx, dcx = call.layout.own(found.dx), found.dhx, found.dcx
        return to_tensor(dx), to_tensor(dhx), None if dcx is None else to_tensor(dcx), views(call.desc, found.dw)


def weights_now(desc: RNNDescriptor, found: Found | None, parameters: Sequence[torch.Tensor]) -> Any:
    """The flat weights that backward reads: the parameters may have moved since forward. Those that have not may be of
    another shape or dtype: what their memory holds is what forward read."""
    if found is not None and [one.data_ptr() for one in parameters] == found.addresses:
        return found.weights
    return flat_weights(desc, parameters)[0]


def refuse_transforms(function: str, *tensors: Any) -> None:
    """Raise in a transform of `torch.func`, or for batched gradients: their tensors have no memory to read."""
    if torch._C._functorch.peek_interpreter_stack() is not None or any(
        one is not None and _is_batched(one) for one in tensors
    ):
        refuse_transform(function)


def refuse_transform(function: str) -> NoReturn:
    """Raise because a call is in a transform that it cannot be in."""
    expected = "be outside of vmap, jvp and, if compiled, of every transform of torch.func"
    cure = "transform PyTorch's own module: call rnnkit.torch.restore first"
    raise BackendError(message(function, "call", expected, "inside of one", cure))


def once(gradients: Sequence[Any], *tensors: Any) -> Sequence[Any]:
    """The gradients; where create_graph asks for theirs, which there are not, they depend on the tensors."""
    return _Once.apply(len(gradients), *gradients, *tensors) if torch.is_grad_enabled() else gradients


class _Once(torch.autograd.Function):
    """Gradients as they are, with what they depend on; they have none themselves."""

    @staticmethod
    def forward(count, *tensors):
        return tuple(None if one is None else one.view_as(one) for one in tensors[:count])

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *cotangents):
        raise RuntimeError(message("backward", "order", "be 1", 2, "second derivatives need PyTorch's own module"))


def infer(call: Call, x, hx, cx, *parameters):
    """Run the network without keeping anything."""
    with _resources(x):
        _alive = parameters[0].detach()
        weights = call.found.weights if call.found else flat_weights(call.desc, parameters)[0]
        arrays = weights, call.layout.time_major(to_array(x)), _optional(hx), _optional(cx)
        y, hy, cy = engine.infer(call.desc, *arrays, lengths=call.lengths)
        return _tensors(call.layout.own(y), hy, cy)


def _tensors(*arrays: Any) -> tuple[torch.Tensor, ...]:
    """Those that there are: cy is an LSTM's alone."""
    return tuple(to_tensor(array) for array in arrays if array is not None)


@lru_cache(256)
def _blocks(desc: RNNDescriptor) -> tuple[tuple[slice, tuple[int, ...]], ...]:
    return tuple((slice(start, start + prod(shape)), shape) for _, shape, start in weight_layout(desc))


def views(desc: RNNDescriptor, flat: Any) -> list[torch.Tensor]:
    """The blocks of a flat array, in its order.

    On the CPU each is a storage of its own in the buffer's memory: what saves or shares tensors goes by storages, and
    takes tensors of one storage for tied ones. On a GPU they are views, as those that PyTorch makes for cuDNN.
    """
    if isinstance(flat, np.ndarray):
        return [torch.from_numpy(flat[own].reshape(shape)) for own, shape in _blocks(desc)]
    flat = to_tensor(flat)
    return [flat[own].view(shape) for own, shape in _blocks(desc)]


def flat_weights(desc: RNNDescriptor, parameters: Sequence[torch.Tensor]) -> tuple[Any, bool]:
    """The parameters as one flat array, and whether it is a copy: where they are neighbours, it is their own memory."""
    first, size = parameters[0], num_weights(desc)
    if are_neighbours(desc, parameters):
        if first.device.type != "cpu":
            return to_array(first.detach().as_strided((size,), (1,))), False
        memory: Any = (ctypes.c_byte * (size * first.element_size())).from_address(first.data_ptr())
        memory.first = first.detach()  # keeps it alive, and so the buffer that all of them are in
        return np.frombuffer(memory, desc.np_dtype), False
    dtype = getattr(torch, str(desc.dtype))
    for block, one in zip(weight_layout(desc), parameters, strict=True):
        _check_parameter(block, one, dtype, first.device)
    return to_array(torch.cat([one.reshape(-1) for one in parameters]).to(dtype)), True


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


def _check_parameter(block: Any, one: torch.Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Raise where a copy into the flat buffer would be a conversion, which autocast alone asks for."""
    fits = one.shape == block.shape and one.device == device
    if not fits or (one.dtype != dtype and not torch.is_autocast_enabled(device.type)):
        expected = f"have shape {tuple(block.shape)} and be {dtype} on {device}"
        actual = f"{tuple(one.shape)}, {one.dtype} on {one.device}"
        raise TypeError(message("forward", block.name, expected, actual))


def to_array(tensor: torch.Tensor) -> Any:
    """The tensor's memory as an array, NumPy's or CuPy's."""
    if tensor.is_cpu:
        return tensor.detach().resolve_neg().numpy()
    if tensor.device.type == "cuda":
        return _cupy().from_dlpack(tensor.detach())
    raise BackendError(message("forward", "input", "be on a CPU or a CUDA device", tensor.device))


def to_tensor(array: Any) -> torch.Tensor:
    """The array's memory as a tensor."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def _resources(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """What PyTorch would compute with where the tensor is: its threads, or its stream."""
    if tensor.is_cpu:
        return threads()
    return _cupy().cuda.ExternalStream(torch.cuda.current_stream(tensor.device).cuda_stream, tensor.device.index)


def _library(array: Any) -> Any:
    return np if isinstance(array, np.ndarray) else _cupy()


def _cupy() -> Any:
    try:
        import cupy
    except ImportError:
        cure = "install cupy and nvidia-cudnn, or move model and input to the CPU"
        raise BackendError(message("forward", "CuPy", "be installed for CUDA tensors", "none", cure)) from None
    return cupy


def _optional(tensor: Any) -> Any:
    return None if tensor is None else to_array(tensor)


class _Lease:
    """A workspace, whose memory is idle again when nobody holds the lease."""

    def __init__(self, workspace: Any, idle: MutableSequence[Any]) -> None:
        self.workspace = workspace
        weakref.finalize(self, _release, workspace, idle).atexit = False


def _kept(workspace: Any, idle: MutableSequence[Any]) -> torch.Tensor:
    """A tensor that has the workspace with it, for autograd to save."""
    kept = torch.empty(0, device="cpu")
    kept.lease = _Lease(workspace, idle) if workspace.lease is None else _Small(workspace)
    return kept


class _Small(NamedTuple):
    """The workspace of a small call, whose memory the engine uses again."""

    workspace: Any


def _release(workspace: Any, idle: MutableSequence[Any]) -> None:
    """Let its memory be used again, and the caller's inputs go."""
    workspace.x, workspace.inputs = workspace.x[:0].copy(), {}
    idle.append(workspace)


def _idle_one(idle: MutableSequence[Any]) -> Any:
    """A workspace whose memory may be used again, or None; another thread may take the last one meanwhile."""
    try:
        return idle.pop()
    except IndexError:
        return None


def saved_by(kept: torch.Tensor) -> Any:
    """What forward saved with the tensor."""
    try:
        return kept.lease
    except AttributeError:
        cure = "hooks that move saved tensors elsewhere (save_on_cpu) do not work with the engine"
        raise BackendError(message("backward", "what forward saved", "be as it was", "a copy", cure)) from None
