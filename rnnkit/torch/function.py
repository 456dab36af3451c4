"""One call of the engine as a function of tensors, with its gradient for autograd."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import MutableSequence, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from rnnkit.call.side_inputs import split
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.states import concatenate_states, split_states
from rnnkit.descriptor.weights import num_weights, weight_layout
from rnnkit.errors import BackendError, message
from rnnkit.network import engine
from rnnkit.torch.arrays import resources, to_array, to_tensor
from rnnkit.torch.layout import ONE_STEP, Layout
from rnnkit.torch.plain import Found, are_neighbours

RESTORE = "call rnnkit.torch.restore first; in place of a Recurrent write the steps in PyTorch"

_transform = torch._C._functorch.peek_interpreter_stack
_is_batched = torch._C._functorch.is_legacy_batchedtensor  # what `torch.autograd.grad(is_grads_batched=True)` makes


class Call(NamedTuple):
    """What a call has beside tensors with a gradient."""

    desc: RNNDescriptor
    layout: Layout
    lengths: Any
    resets: Any
    seed: int | None
    idle: MutableSequence[Any]  # workspaces whose memory may be used again
    found: Found | None = None  # where the parameters are
    all_states: bool = False  # whether the states after each step are results, too, without a gradient


class Recurrence(torch.autograd.Function):
    """The network; the parameters, in the flat buffer's order, are arguments of their own, for each has a gradient."""

    @staticmethod
    def forward(ctx, call: Call, x, hx, cx, *parameters):
        """Run it and keep its workspace."""
        results, kept, ctx.weights = forward(call, x, hx, cx, parameters)
        saved_by(kept).workspace.wants_dx = ctx.needs_input_grad[1] or bool(call.desc.inputs_size)
        states_of_steps = all_states(call, kept) if call.all_states else ()
        ctx.mark_non_differentiable(*states_of_steps)
        # Autograd drops what is saved when nobody needs it any more, and says so where somebody does; and it notices
        # changes of x and the weights, which backward reads again. A gradient depends on initial states, too.
        states = (state if state is not None and state.requires_grad else None for state in (hx, cx))
        ctx.save_for_backward(x, kept, *states, *parameters)
        ctx.call, ctx.has_states = call, (hx is not None, cx is not None)
        ctx.set_materialize_grads(False)
        return *results, *states_of_steps

    @staticmethod
    def backward(ctx, *cotangents):
        """Every gradient, those of the parameters in the memory of one flat buffer."""
        call, (x, kept, *others) = ctx.call, ctx.saved_tensors
        cotangents = cotangents[: call.layout.num_results(call.desc)]
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
    with resources(x):
        weights, copied = (call.found.weights, False) if call.found else flat_weights(call.desc, parameters)
        x, inputs = split(call.desc, call.layout.time_major(to_array(x)))
        arrays = weights, x, *_states(call, hx, cx)
        options = {"lengths": call.lengths, "resets": call.resets, "seed": call.seed, "inputs": inputs}
        y, hy, cy, workspace = engine.forward(call.desc, *arrays, workspace=_idle_one(call.idle), **options)
        if workspace.lease is not None:
            y.flags.writeable = True  # that of a small call is the user's
        y, *states = call.layout.results(y, hy, concatenate_states(call.desc, cy))
        if call.layout.order != ONE_STEP and (workspace.lease is None or not y.flags.c_contiguous):
            y = y.copy(order="C")  # the workspace's own is read again, and the user may change his
        results = to_tensor(y), *map(to_tensor, states)
        return results, _kept(workspace, call.idle), weights if copied else None


def all_states(call: Call, kept: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The hidden and the cell states after each step, (T, L*D, N, ...), of what forward kept."""
    desc, workspace = call.desc, saved_by(kept).workspace
    places = [divmod(row, desc.num_directions) for row in range(desc.num_pseudo_layers)]
    names = "h", *desc.states
    found = [[to_tensor(np.array(workspace.state(name, *place))) for place in places] for name in names]
    return tuple(torch.stack(states, 1) for states in found)


def backward(call: Call, kept, x, parameters, weights, *cotangents) -> tuple[Any, ...]:
    """The gradients of x (None if unwanted), hx, cx (None without it) and a list of those of the parameters, by those
    of the results."""
    layout = call.layout
    with resources(x):
        weights = weights_now(call.desc, call.found, parameters) if weights is None else weights
        dy, dhy, dcy = layout.cotangents(cotangents)
        given = None if dy is None else layout.time_major(to_array(dy)), *_states(call, dhy, dcy)
        workspace = saved_by(kept).workspace
        dx, dhx, dcx, dw, *of_inputs = engine.backward(call.desc, weights, workspace, *given)
        if of_inputs:
            dx = np.concatenate([dx, *of_inputs[0].values()], axis=-1)
        dx = layout.own(dx) if workspace.wants_dx else None
        found = dx, layout.own_states(dhx), layout.own_states(concatenate_states(call.desc, dcx))
        return *map(to_tensor, found), views(call.desc, dw)


def weights_now(desc: RNNDescriptor, found: Found | None, parameters: Sequence[torch.Tensor]) -> Any:
    """The flat weights that backward reads: the parameters may have moved since forward. Those that have not may be of
    another shape or dtype: what their memory holds is what forward read."""
    if found is not None and [one.data_ptr() for one in parameters] == found.addresses:
        return found.weights
    return flat_weights(desc, parameters)[0]


def refuse_transforms(function: str, *tensors: Any) -> None:
    """Raise in a transform of `torch.func`, or for batched gradients: their tensors have no memory to read."""
    if _transform() is not None:
        refuse_transform(function)
    for one in tensors:
        if one is not None and _is_batched(one):
            refuse_transform(function)


def refuse_transform(function: str) -> NoReturn:
    """Raise because a call is in a transform that it cannot be in."""
    expected = "be outside of vmap, jvp and, if compiled, of every transform of torch.func"
    cure = f"transform PyTorch's own module: {RESTORE}"
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
        cure = "second derivatives need PyTorch's own module, or of a Recurrent the steps written in PyTorch"
        raise RuntimeError(message("backward", "order", "be 1", 2, cure))


def infer(call: Call, x, hx, cx, *parameters):
    """Run the network without keeping anything."""
    with resources(x):
        weights = call.found.weights if call.found else flat_weights(call.desc, parameters)[0]
        x, inputs = split(call.desc, call.layout.time_major(to_array(x)))
        arrays = weights, x, *_states(call, hx, cx)
        y, hy, cy = engine.infer(call.desc, *arrays, lengths=call.lengths, inputs=inputs, resets=call.resets)
        return tuple(map(to_tensor, call.layout.results(y, hy, concatenate_states(call.desc, cy))))


def _states(call: Call, h: Any, others: Any) -> tuple[Any, Any]:
    """The states, or their gradients, as the engine takes them: several beside h are a tuple."""
    h, others = (call.layout.states(to_array(one)) for one in (h, others))
    return h, None if others is None else split_states(call.desc, others)


@lru_cache(256)
def _blocks(desc: RNNDescriptor) -> tuple[tuple[slice, tuple[int, ...]], ...]:
    return tuple((slice(start, start + prod(shape)), shape) for _, shape, start in weight_layout(desc))


def views(desc: RNNDescriptor, flat: Any) -> list[torch.Tensor]:
    """The blocks of a flat array, in its order.

    On the CPU each is a storage of its own in the buffer's memory: what saves or shares tensors goes by storages, and
    takes tensors of one storage for tied ones. On a GPU they are views, as those that PyTorch makes for cuDNN.
    """
    if isinstance(flat, np.ndarray):
        blocks = _blocks(desc)
        return [torch.from_numpy(flat[own] if len(shape) == 1 else flat[own].reshape(shape)) for own, shape in blocks]
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


def _check_parameter(block: Any, one: torch.Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Raise where a copy into the flat buffer would be a conversion, which autocast alone asks for."""
    fits = one.shape == block.shape and one.device == device
    if not fits or (one.dtype != dtype and not torch.is_autocast_enabled(device.type)):
        expected = f"have shape {tuple(block.shape)} and be {dtype} on {device}"
        actual = f"{tuple(one.shape)}, {one.dtype} on {one.device}"
        raise TypeError(message("forward", block.name, expected, actual))


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
