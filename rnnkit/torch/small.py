"""Calls with plain tensors, prepared for their size: as in `function`, without what they do not need."""

from __future__ import annotations

from typing import Any

import torch

from rnnkit.network import engine
from rnnkit.torch.function import once, refuse_transforms, saved_by, views, weights_now
from rnnkit.torch.layout import ONE_STEP
from rnnkit.torch.plain import Found, Size
from rnnkit.torch.threads import threads


class SmallRecurrence(torch.autograd.Function):
    """The network, in a call whose arguments are plain and whose parameters are where they were found."""

    @staticmethod
    def forward(ctx, found, size, x, hx, cx, *parameters):
        layout = size.layout
        kept = parameters[0].detach()  # with the memory of all, whatever happens to the module meanwhile
        kept.lease = held = engine.small_calls().taken(found.desc, *layout.shape, size.threads, size.idle)
        arrays = layout.time_major(_array(x)), layout.states(_array(hx)), layout.states(_array(cx))
        y, hy, cy = _run(held.call, held.call.forward, found.weights, *arrays)
        results = layout.results(y, hy, cy)
        if layout.order != ONE_STEP:
            results = results[0].copy(order="C"), *results[1:]  # the call's own is read again
        # Autograd drops what is saved when nobody needs it any more, and says so where somebody does; and it notices
        # changes of x and the weights, which backward reads again. A gradient depends on initial states, too.
        states = (state if state is not None and state.requires_grad else None for state in (hx, cx))
        ctx.save_for_backward(x, kept, *states, *parameters)
        ctx.found, ctx.layout = found, layout
        ctx.set_materialize_grads(False)
        return tuple(map(torch.from_numpy, results))

    @staticmethod
    def backward(ctx, *cotangents):
        found, layout, (x, kept, *others) = ctx.found, ctx.layout, ctx.saved_tensors
        dy, dhy, dcy = layout.cotangents(cotangents)
        if dy is None and dhy is None and dcy is None:
            return (None,) * len(ctx.needs_input_grad)
        refuse_transforms("backward", dy, dhy, dcy)
        call, (_, _, wants_dx, wants_dhx, wants_dcx, *_) = saved_by(kept).call, ctx.needs_input_grad
        w, states = weights_now(found.desc, found, others[2:]), (layout.states(_array(one)) for one in (dhy, dcy))
        arrays = layout.time_major(_array(x)), layout.time_major(_array(dy)), *states
        dx, dhx, dcx, dw = _run(call, call.backward, w, *arrays, wants_dx, wants_dhx)
        dx = torch.from_numpy(layout.own(dx)) if wants_dx else None
        dhx = torch.from_numpy(layout.own_states(dhx)) if wants_dhx else None
        dcx = torch.from_numpy(layout.own_states(dcx)) if wants_dcx else None
        return None, None, *once((dx, dhx, dcx, *views(found.desc, dw)), x, dy, dhy, dcy, *others)


# PyTorch's own looks for transforms first, in 4 us: none is about where a call is plain.
apply = super(torch.autograd.Function, SmallRecurrence).apply


def infer(found: Found, size: Size, x: Any, hx: Any, cx: Any) -> tuple[torch.Tensor, ...]:
    """The results of a call that nobody wants a gradient of; the parameters stay where they were found meanwhile."""
    layout, inference = size.layout, size.inference
    arrays = layout.time_major(_array(x)), layout.states(_array(hx)), layout.states(_array(cx))
    y, hy, cy = _run(inference, inference.run, found.weights, *arrays)
    return tuple(map(torch.from_numpy, layout.results(y, hy, cy)))


def _run(call: Any, function: Any, *arguments: Any) -> Any:
    """The results of a function of a call, on PyTorch's threads where they pay."""
    if call.is_brief:
        return function(*arguments)
    with threads():
        return function(*arguments)


def _array(tensor: Any) -> Any:
    """As `to_array`, in half of the time."""
    if tensor is None:
        return None
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.resolve_neg().numpy() if tensor.is_neg() else tensor.numpy()
