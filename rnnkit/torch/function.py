"""autograd.Function of one engine call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from rnnkit.call.drawn import drawn
from rnnkit.call.side_inputs import split
from rnnkit.common.arrays import copy_of
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.states import concatenate_states, split_states
from rnnkit.descriptor.weights import num_weights, weight_layout
from rnnkit.errors import BackendError, message
from rnnkit.network import engine
from rnnkit.torch import equations, fallback
from rnnkit.torch.arrays import compute_context, is_autocast, to_array, to_tensor
from rnnkit.torch.layout import ONE_STEP, Layout
from rnnkit.torch.plain import BackwardReads, FlatParameters, aliases_of, are_neighbours, read_by_backward

RESTORE = "call rnnkit.torch.restore first; for a Recurrent, use the function of rnnkit.cells.unrolled"

_is_wrapped, _unwrapped = torch._C._functorch.is_functorch_wrapped_tensor, torch._C._functorch.get_unwrapped
# Whether tensors are needed after this backward; PyTorch 2.4 does not tell.
keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


class Call(NamedTuple):
    """Arguments of a call that have no gradient."""

    desc: RNNDescriptor
    layout: Layout
    lengths: Any
    resets: Any
    mask: Any
    seed: int | None
    flat: FlatParameters | None = None  # where the parameters are
    all_states: bool = False  # whether to return the states after each step, too, without a gradient
    precision: str | None = None  # of the products
    hand_on: Any = None  # takes the gradients of single sequences, a list of (N, ...) for the parameters; None: no one

    @property
    def options(self) -> dict[str, Any]:
        """Those of the call by the engine and by PyTorch's operations."""
        return {"lengths": self.lengths, "resets": self.resets, "mask": self.mask}


class Recurrence(torch.autograd.Function):
    """The network. Parameters are separate arguments, in the flat buffer's order, as each has a gradient."""

    @staticmethod
    def forward(ctx, call: Call, x, hx, cx, *parameters):
        """Run the network and save its workspace."""
        results, kept = forward(call, x, hx, cx, parameters)
        _, wants_dx, *wants_states = ctx.needs_input_grad[:4]
        states_of_steps = all_states(call, kept) if call.all_states else ()
        ctx.mark_non_differentiable(*states_of_steps)
        # save_for_backward frees tensors after use and detects in-place changes of x and the weights, which backward
        # reads again.
        tensors = x, hx, cx, *parameters
        ctx.given = fallback.Given(tensors, fallback.changes_of(tensors))
        ctx.numbers = read_by_backward(call.desc, wants_dx, call.layout.shape[0] > 1 or any(wants_states))
        aliases = lease_of(kept).weights.aliases or aliases_of(parameters)
        ctx.save_for_backward(input_to_save(call.desc, tensors), kept, *(aliases[number] for number in ctx.numbers))
        ctx.call = call
        ctx.set_materialize_grads(False)
        return *results, *states_of_steps

    @staticmethod
    def backward(ctx, *cotangents):
        """Return all gradients; those of the parameters share one flat buffer."""
        call, given, (x, kept, *saved) = ctx.call, ctx.given, ctx.saved_tensors
        cotangents = cotangents[: call.layout.num_results(call.desc)]
        if all(one is None for one in cotangents):
            return (None,) * len(ctx.needs_input_grad)
        wants_dx, *others = ctx.needs_input_grad[1:]
        if reason := fallback.transformed(*cotangents):
            fallback.warn("backward", reason)
            return None, *fallback.gradients(*_again(call, kept, given), cotangents, [wants_dx, *others])
        dx, *states, dws = backward(call, kept, x, (ctx.numbers, saved), *cotangents, wants_dx=wants_dx)
        states = [one if state is not None else None for one, state in zip(states, given.tensors[1:3], strict=True)]
        found = dx, *states, *dws
        if torch.is_grad_enabled():
            found = fallback.differentiable(*_again(call, kept, given), cotangents, found)
        elif not keeps_graph():
            ctx.given = None
        return None, *found


def _again(call: Call, kept: torch.Tensor, given: fallback.Given) -> tuple[fallback.Run, Sequence[Any]]:
    """Return the call by PyTorch's operations, and what its forward took."""
    workspace, weights = lease_of(kept)
    return by_equations(call, partial(drawn, workspace)), given.unchanged(weights.addresses)


def input_to_save(desc: RNNDescriptor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return what autograd saves of x. `tensors` are x, hx, cx and the parameters. If only frozen weights depend on x,
    it is an alias, whose changes autograd does not detect."""
    x = tensors[0]
    if x.requires_grad or tensors[3].requires_grad or desc.inputs_size:
        return x
    blocks = zip(weight_layout(desc), tensors[3:], strict=True)
    is_read = any(one.requires_grad for block, one in blocks if block.name.startswith("weight_ih_l0"))
    return x if is_read else x.data


def weights_of(flat: FlatParameters, reads: BackwardReads, saved: Sequence[torch.Tensor]) -> Any:
    """Return the flat weights that a call with `flat` read; `saved` are `reads.aliases` as autograd has saved them."""
    if flat.aliases[0].data_ptr() == flat.addresses[0] and [one.data_ptr() for one in saved] == reads.addresses:
        return flat.weights
    return WeightsRead(flat.weights, flat.aliases, flat.addresses).now(flat.desc, reads.numbers, saved)


class WeightsRead(NamedTuple):
    """The flat weights that a forward read, for its backward."""

    flat: Any
    aliases: Sequence[torch.Tensor]  # of the parameters; none if `flat` is a copy
    addresses: Sequence[int]

    def now(self, desc: RNNDescriptor, numbers: Sequence[int] = (), saved: Sequence[torch.Tensor] = ()) -> Any:
        """Return them; `saved` are the aliases of these numbers as autograd has saved them."""
        found = list(self.aliases)
        for number, one in zip(numbers, saved, strict=True) if found else ():
            found[number] = one
        if [one.data_ptr() for one in found] == self.addresses:
            return self.flat
        return flat_weights(desc, found)[0]  # now in shared memory, or copied by a hook of saved tensors


def _weights_read(call: Call, parameters: Sequence[torch.Tensor]) -> WeightsRead:
    flat = call.flat
    if flat is not None:
        return WeightsRead(flat.weights, flat.aliases, flat.addresses)
    flat, copied = flat_weights(call.desc, parameters)
    aliases = [] if copied else aliases_of(parameters)
    return WeightsRead(flat, aliases, [one.data_ptr() for one in aliases])


def forward(call: Call, x, hx, cx, parameters) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Run the network so that backward can follow.

    Returns the results, and a tensor for autograd to save, which holds the workspace and the weights.
    """
    with compute_context(x):
        weights = _weights_read(call, parameters)
        x, inputs = split(call.desc, call.layout.time_major(to_array(x)))
        arrays = weights.flat, x, *_states(call, hx, cx)
        options = call.options | {"seed": call.seed, "inputs": inputs, "precision": call.precision}
        y, hy, cy, workspace = engine.forward(call.desc, *arrays, **options)
        workspace.input_shapes = {}  # the gradient of side inputs stays beside that of x, as the module took them
        is_copy = isinstance(y, np.ndarray) and y.flags.owndata
        if is_copy:
            y.flags.writeable = True  # the y of a small call belongs to the caller
        y, *states = call.layout.results(y, hy, concatenate_states(call.desc, cy))
        if call.layout.order != ONE_STEP and not (is_copy and y.flags.c_contiguous):
            y = y.copy(order="C")  # backward reads the workspace's y, and the caller may change the result
        results = to_tensor(y), *map(to_tensor, states)
        return results, _with_lease(Kept(workspace, weights))


def all_states(call: Call, kept: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the hidden and the cell states after each step, (T, L*D, N, ...), from a saved workspace."""
    desc, workspace = call.desc, lease_of(kept).workspace
    places = [divmod(row, desc.num_directions) for row in range(desc.num_pseudo_layers)]
    names = "h", *desc.states
    states = [[to_tensor(copy_of(workspace.state(name, *place))) for place in places] for name in names]
    return tuple(torch.stack(rows, 1) for rows in states)


def backward(call: Call, kept, x, saved, *cotangents, wants_dx: bool = True) -> tuple[Any, ...]:
    """Return the gradients of x (None unless wanted), hx, cx (None without it), and a list for the parameters.

    `saved` are the last arguments of `WeightsRead.now`, `cotangents` the gradients of the results.
    """
    layout, lease = call.layout, lease_of(kept)
    with compute_context(x):
        weights, workspace = lease.weights.now(call.desc, *saved), lease.workspace
        dy, dhy, dcy = layout.cotangents(cotangents)
        given = None if dy is None else layout.time_major(to_array(dy)), *_states(call, dhy, dcy)
        arguments = call.desc, weights, workspace, *given
        if call.hand_on is None:
            dx, dhx, dcx, dw = engine.gradients_of(*arguments, wants_dx=wants_dx)
        else:
            dx, dhx, dcx, dws = engine.backward(*arguments, per_sequence=True)
            call.hand_on([to_tensor(dws[:, at].reshape(-1, *shape)) for at, shape in blocks_of(call.desc)])
            dw = dws.sum(0)
        dx = layout.to_tensor_layout(dx) if wants_dx else None
        found = dx, layout.to_tensor_states(dhx), layout.to_tensor_states(concatenate_states(call.desc, dcx))
        return *map(to_tensor, found), views(call.desc, dw)


def by_equations(call: Call, drawn_by: Callable[[], equations.Drawn]) -> fallback.Run:
    """Return the call as a function of x, hx, cx and the parameters, by PyTorch's operations.

    `drawn_by` returns the random numbers of its forward.
    """
    try:
        numbers = drawn_by() if call.desc.draws else ((), {})
    except BackendError as error:  # of cuDNN; the function may never be called
        return partial(_raise, error)
    return partial(equations.results, call.desc, call.layout, call.options, numbers)


def _raise(error: BackendError, tensors: Any) -> NoReturn:
    raise error


def infer(call: Call, x, hx, cx, *parameters):
    """Run the network without a backward."""
    with compute_context(x):
        weights = call.flat.weights if call.flat else flat_weights(call.desc, parameters)[0]
    return infer_by(partial(engine.infer, call.desc, weights, precision=call.precision), call, x, hx, cx)


def infer_by(run: Callable[..., Any], call: Call, x, hx, cx):
    """Run a network by a function of x, hx, cx and options, which takes and returns arrays."""
    with compute_context(x):
        x, inputs = split(call.desc, call.layout.time_major(to_array(x)))
        y, hy, cy = run(x, *_states(call, hx, cx), **call.options, inputs=inputs)
        return tuple(map(to_tensor, call.layout.results(y, hy, concatenate_states(call.desc, cy))))


def _states(call: Call, h: Any, others: Any) -> tuple[Any, Any]:
    """Convert states, or their gradients, to the engine's form: h, and cx, a tuple if the cell has several."""
    h, others = (call.layout.states(to_array(state)) for state in (h, others))
    return h, None if others is None else split_states(call.desc, others)


@lru_cache(256)
def blocks_of(desc: RNNDescriptor) -> tuple[tuple[slice, tuple[int, ...]], ...]:
    return tuple((slice(start, start + prod(shape)), shape) for _, shape, start in weight_layout(desc))


def array_blocks(desc: RNNDescriptor, flat: np.ndarray) -> list[np.ndarray]:
    """Return the blocks of a flat array, in its order: views."""
    return [flat[at] if len(shape) == 1 else flat[at].reshape(shape) for at, shape in blocks_of(desc)]


def views(desc: RNNDescriptor, flat: Any) -> list[torch.Tensor]:
    """Return the blocks of a flat array as tensors, in its order.

    On the CPU each has its own storage in the buffer's memory, because saving and sharing treat tensors of one storage
    as tied. On a GPU they are views, like those that PyTorch makes for cuDNN.
    """
    if isinstance(flat, np.ndarray):
        return [*map(torch.from_numpy, array_blocks(desc, flat))]
    flat = to_tensor(flat)
    return [flat[at].view(shape) for at, shape in blocks_of(desc)]


def flat_weights(desc: RNNDescriptor, parameters: Sequence[torch.Tensor]) -> tuple[Any, bool]:
    """Return the parameters as one flat array, and whether it is a copy: adjacent parameters are read in place."""
    first, size = parameters[0], num_weights(desc)
    if are_neighbours(desc, parameters):
        if first.device.type != "cpu":
            return to_array(first.detach().as_strided((size,), (1,))), False
        memory: Any = (ctypes.c_byte * (size * first.element_size())).from_address(first.data_ptr())
        memory.first = first.detach()  # keeps the buffer of all parameters alive
        return np.frombuffer(memory, desc.np_dtype), False
    dtype = getattr(torch, str(desc.dtype))
    for block, one in zip(weight_layout(desc), parameters, strict=True):
        _check_parameter(block, one, dtype, first.device)
    return to_array(torch.cat([one.reshape(-1) for one in parameters]).to(dtype)), True


def _check_parameter(block: Any, one: torch.Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Raise if a copy into the flat buffer would need a conversion, unless under autocast."""
    fits = one.shape == block.shape and one.device == device
    if not fits or (one.dtype != dtype and not is_autocast(device)):
        expected = f"have shape {tuple(block.shape)} and be {dtype} on {device}"
        actual = f"{tuple(one.shape)}, {one.dtype} on {one.device}"
        raise TypeError(message("forward", block.name, expected, actual))


class Kept(NamedTuple):
    """What backward needs: the workspace, whose memory becomes idle with it, and the weights."""

    workspace: Any
    weights: WeightsRead


def _with_lease(kept: Kept) -> torch.Tensor:
    """Return an empty tensor that owns the workspace, for autograd to save."""
    owner = torch.empty(0, device="cpu", dtype=torch.float32)
    owner.lease = kept
    return owner


def lease_of(kept: torch.Tensor) -> Any:
    """Return the lease that forward saved with the tensor."""
    while _is_wrapped(kept):  # by a transform of torch.func
        kept = _unwrapped(kept)
    try:
        return kept.lease
    except AttributeError:
        text = "what forward saved is a copy; hooks that move saved tensors (save_on_cpu) are not supported"
        raise BackendError(f"backward: {text}") from None
