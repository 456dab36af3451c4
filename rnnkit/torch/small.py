"""Calls with plain tensors, prepared for their size: as in `function`, without what they do not need."""

from __future__ import annotations

from ctypes import memmove
from typing import Any

import numpy as np
import torch

from rnnkit.network import engine
from rnnkit.torch import chains
from rnnkit.torch.arrays import to_array
from rnnkit.torch.function import once, refuse_transforms, saved_by, views, weights_now
from rnnkit.torch.gradient_memory import give_back, new_gradient
from rnnkit.torch.layout import BATCH_FIRST, ONE_STEP, STEPS_FIRST, Layout
from rnnkit.torch.plain import Found, Size
from rnnkit.torch.threads import threads

from_numpy = torch.from_numpy


class SmallRecurrence(torch.autograd.Function):
    """The network, in a call whose arguments are plain and whose parameters are where they were found."""

    @staticmethod
    def forward(ctx, found, size, seed, parameters, sums, x, hx, cx, *weights):
        layout, idle = size.layout, size.idle
        call = _taken(found, size)
        given = _read(x, layout.order), _read(hx), _read(cx)
        if call.is_brief:
            y, hy, cy = call.forward(found.weights, *given, seed)
        else:
            with threads():
                y, hy, cy = call.forward(found.weights, *given, seed)
        results = _copied(layout, y, hy, cy)
        is_copied, number = call.is_copied, call.number  # before another thread may have the call
        if is_copied:
            kept = from_numpy(call.ws_memory.copy())
            call.give_back(idle)
        else:
            kept = found.memory.detach()
            kept.lease = call.lease(idle)
        # Autograd drops what is saved when nobody needs it any more, and says so where somebody does; and it notices
        # changes of x and the weights, which backward reads again. A gradient depends on initial states, too.
        hx = hx if hx is not None and hx.requires_grad else None
        ctx.save_for_backward(x, kept, hx, cx if cx is not None and cx.requires_grad else None, *parameters)
        ctx.of = found, size, is_copied, number, sums
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, *cotangents):
        (found, size, is_copied, number, sums), (x, kept, hx, cx, *parameters) = ctx.of, ctx.saved_tensors
        layout, idle = size.layout, size.idle
        dy, dhy, dcy = layout.cotangents(cotangents)
        if dy is dhy is dcy is None:
            return (None,) * len(ctx.needs_input_grad)
        refuse_transforms("backward", dy, dhy, dcy)
        w, (wants_dx, wants_dhx, wants_dcx, *_) = weights_now(found.desc, found, parameters), ctx.needs_input_grad[5:]
        dhx = np.zeros(size.states[0], w.dtype) if dhy is None else _copy(dhy)
        dcx = 0 if size.cells is None else np.zeros(size.cells, w.dtype) if dcy is None else _copy(dcy)
        given = _read(x, layout.order), _read(dy, layout.order), dhx, dcx
        if is_copied:
            call = _taken(found, size)
            if call.number != number:
                _write_back(call, kept)
        else:
            call = saved_by(kept).call
        total = None if sums is None else sums.begun()
        dw, gathered = (new_gradient(found), None) if total is None else total.place(found, size)
        given = *given, dw, wants_dx, wants_dhx, total is None, gathered
        if call.is_brief:
            dx = call.backward(w, *given)
        else:
            with threads():
                dx = call.backward(w, *given)
        if is_copied:
            call.give_back(idle)
        dx = from_numpy(layout.own(dx)) if wants_dx else None
        if total is not None:
            dws = (None,)  # autograd has it
        elif sums is not None:
            dws = (sums.begin(dw),)
        else:
            dws = views(found.desc, dw)
            give_back(found, dw)
        gradients = dx, from_numpy(dhx) if wants_dhx else None, from_numpy(dcx) if wants_dcx else None, *dws
        return None, None, None, None, None, *once(gradients, x, dy, dhy, dcy, hx, cx, *parameters)


def _taken(found: Found, size: Size) -> Any:
    """One of the idle calls of this size, or a new one; another thread may take the last one meanwhile."""
    try:
        return size.idle.pop()
    except IndexError:
        return engine.small_calls().SmallCall(found.desc, *size.layout.shape, size.threads)


def _write_back(call: Any, kept: torch.Tensor) -> None:
    """Let the call have what another one kept, in half of the time that takes with arrays."""
    call.is_overwritten()
    if kept.nbytes == call.ws_memory.nbytes and kept.is_cpu and kept.is_contiguous():
        memmove(call.ws_address, kept.data_ptr(), kept.nbytes)
    else:  # a hook has changed it
        np.copyto(call.ws_memory, kept.numpy())


def _copied(layout: Layout, y: Any, hy: Any, cy: Any) -> tuple[Any, ...]:
    """The results of a small call, whose y is read again, as tensors of the caller's own."""
    if layout.order == ONE_STEP:
        return (from_numpy(hy[0]),) if cy is None else (from_numpy(hy[0]), from_numpy(cy[0]))
    y = from_numpy(layout.own(y).copy(order="C"))
    return (y, from_numpy(hy)) if cy is None else (y, from_numpy(hy), from_numpy(cy))


def _read(tensor: Any, order: int = STEPS_FIRST) -> np.ndarray | int:
    """What the kernels read, time-major: the tensor's address, or where it is strided a copy as an array; 0 of None."""
    if tensor is None:
        return 0
    if order == BATCH_FIRST:
        tensor = tensor.transpose(0, 1)
    address = tensor.data_ptr() if tensor.is_contiguous() and not tensor.is_neg() else 0
    return address or _copy(tensor)


def _copy(tensor: torch.Tensor) -> np.ndarray:
    """An array of its own, also of a tensor that has no memory, or not as the kernels read it."""
    if tensor.requires_grad or tensor.is_neg() or tensor._is_zerotensor():
        tensor = tensor.detach().resolve_neg().clone()
    return tensor.numpy().copy()


# PyTorch's own looks for transforms first, in 4 us: none is about where a call is plain.
_apply = super(torch.autograd.Function, SmallRecurrence).apply


def apply(
    found: Found, size: Size, seed: int | None, x: Any, hx: Any, cx: Any, *parameters: Any
) -> tuple[torch.Tensor, ...]:
    """The results of a call that somebody may want a gradient of."""
    if size.layout.shape[0] > 1 or hx is None or not hx.requires_grad:
        return _apply(found, size, seed, parameters, None, x, hx, cx, *parameters)
    # One of a chain, and not the first: for a call alone what joins them costs 10 us.
    joined = chains.joined(found, parameters)
    return _apply(found, size, seed, parameters, joined.sums, x, hx, cx, joined.tensor)


def infer(found: Found, size: Size, x: Any, hx: Any, cx: Any) -> tuple[torch.Tensor, ...]:
    """The results of a call that nobody wants a gradient of; the parameters stay where they were found meanwhile."""
    layout, inference = size.layout, size.inference
    if inference.takes_addresses:
        given = _read(x, layout.order), None if hx is None else _read(hx), None if cx is None else _read(cx)
    else:
        given = layout.time_major(to_array(x)), layout.states(to_array(hx)), layout.states(to_array(cx))
    if inference.is_brief:
        y, hy, cy = inference.run(found.weights, *given)
    else:
        with threads():
            y, hy, cy = inference.run(found.weights, *given)
    return tuple(map(from_numpy, layout.results(y, hy, cy)))
