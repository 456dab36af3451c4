"""Calls with plain tensors, prepared for their size: as in `function`, without what they do not need."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rnnkit.network import engine
from rnnkit.torch.function import once, refuse_transforms, saved_by, views, weights_now
from rnnkit.torch.layout import BATCH_FIRST, ONE_STEP, STEPS_FIRST, Layout
from rnnkit.torch.plain import Found, Size
from rnnkit.torch.threads import threads


class SmallRecurrence(torch.autograd.Function):
    """The network, in a call whose arguments are plain and whose parameters are where they were found."""

    @staticmethod
    def forward(ctx, found, size, x, hx, cx, *parameters):
        layout, idle, calls = size.layout, size.idle, engine.small_calls()
        kept = parameters[0].detach()  # with the memory of all, whatever happens to the module meanwhile
        call = calls.taken(found.desc, *layout.shape, size.threads, idle)
        own = _dense(x, layout.order), _dense(hx), _dense(cx)
        y, hy, cy = _run(call, call.forward, found.weights, *map(_address, own))
        results = tuple(map(torch.from_numpy, _copied(layout, y, hy, cy)))
        if call.is_copied:
            kept = torch.from_numpy(call.kept.copy())
            calls.give_back(call, idle)
        else:
            kept.lease = calls.Held(call, idle)
        # Autograd drops what is saved when nobody needs it any more, and says so where somebody does; and it notices
        # changes of x and the weights, which backward reads again. A gradient depends on initial states, too.
        hx = hx if hx is not None and hx.requires_grad else None
        ctx.save_for_backward(x, kept, hx, cx if cx is not None and cx.requires_grad else None, *parameters)
        ctx.of, ctx.is_copied = (found, size), call.is_copied
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, *cotangents):
        (found, size), (x, kept, hx, cx, *parameters), layout = ctx.of, ctx.saved_tensors, ctx.of[1].layout
        dy, dhy, dcy = layout.cotangents(cotangents)
        if dy is dhy is dcy is None:
            return (None,) * len(ctx.needs_input_grad)
        refuse_transforms("backward", dy, dhy, dcy)
        _alive, calls = parameters[0].detach(), engine.small_calls()
        w, (_, _, wants_dx, wants_dhx, wants_dcx, *_) = weights_now(found.desc, found, parameters), ctx.needs_input_grad
        dhx, *dcx = map(_begun, (dhy, dcy), size.states, (found.dtype,) * 2)
        own = [_dense(x, layout.order), _dense(dy, layout.order), dhx, *dcx]
        if ctx.is_copied:
            call = calls.taken(found.desc, *layout.shape, size.threads, size.idle)
            np.copyto(call.kept, kept.numpy())
        else:
            call = saved_by(kept).call
        addresses = *map(_address, own), 0
        dx, dw = _run(call, call.backward, w, *addresses[:4], wants_dx, wants_dhx)
        if ctx.is_copied:
            calls.give_back(call, size.idle)
        dx = torch.from_numpy(layout.own(dx)) if wants_dx else None
        states = dhx if wants_dhx else None, dcx[0] if wants_dcx else None
        return None, None, *once((dx, *states, *views(found.desc, dw)), x, dy, dhy, dcy, hx, cx, *parameters)


def _copied(layout: Layout, y: Any, hy: Any, cy: Any) -> tuple[Any, ...]:
    """The results of a small call, whose y is read again, as arrays of the caller's own."""
    hy, cy = layout.own_states(hy), layout.own_states(cy) if cy.size > 0 else None
    states = (hy,) if cy is None else (hy, cy)
    return states if layout.order == ONE_STEP else (layout.own(y).copy(order="C"), *states)


def _dense(tensor: Any, order: int = STEPS_FIRST) -> Any:
    """The tensor, or a copy, as the kernels read it, time-major; None of None."""
    if tensor is None:
        return None
    if order == BATCH_FIRST:
        tensor = tensor.transpose(0, 1)
    usual = tensor.is_contiguous() and not tensor.is_neg()
    return tensor if usual else tensor.detach().resolve_neg().contiguous()


def _address(tensor: Any) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _begun(given: Any, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """What the gradient of a state begins from: a copy of what is given, or zeros."""
    if given is None:
        return torch.zeros(shape, dtype=dtype)
    return given.detach().resolve_neg().clone(memory_format=torch.contiguous_format)


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
