"""Calls with plain tensors, prepared for their size: as in `function`, without what they do not need."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rnnkit.network import engine
from rnnkit.torch.arrays import to_array
from rnnkit.torch.function import once, refuse_transforms, saved_by, views, weights_now
from rnnkit.torch.layout import BATCH_FIRST, ONE_STEP, STEPS_FIRST, Layout
from rnnkit.torch.plain import Found, Size
from rnnkit.torch.threads import threads

_ALIGNED_BYTES = range(1 << 17, 1 << 22)
"""Of the weights' gradient, with which it is in PyTorch's memory, which is aligned as NumPy's is not: that takes 1.5
us, but to write 1 MiB there 11 us in place of 17, and to add it 2 less (Zen 5). Of larger arrays NumPy has huge pages.
"""

from_numpy = torch.from_numpy


class SmallRecurrence(torch.autograd.Function):
    """The network, in a call whose arguments are plain and whose parameters are where they were found."""

    @staticmethod
    def forward(ctx, found, size, x, hx, cx, *parameters):
        layout, idle = size.layout, size.idle
        kept = parameters[0].detach()  # with the memory of all, whatever happens to the module meanwhile
        call = _taken(found, size)
        given = _read(x, layout.order), _read(hx), _read(cx)
        if call.is_brief:
            y, hy, cy = call.forward(found.weights, *given)
        else:
            with threads():
                y, hy, cy = call.forward(found.weights, *given)
        results = _copied(layout, y, hy, cy)
        if call.is_copied:
            kept = from_numpy(call.kept.copy())
            call.give_back(idle)
        else:
            kept.lease = call.held(idle)
        # Autograd drops what is saved when nobody needs it any more, and says so where somebody does; and it notices
        # changes of x and the weights, which backward reads again. A gradient depends on initial states, too.
        hx = hx if hx is not None and hx.requires_grad else None
        ctx.save_for_backward(x, kept, hx, cx if cx is not None and cx.requires_grad else None, *parameters)
        ctx.of = found, size, call.is_copied
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, *cotangents):
        (found, size, is_copied), (x, kept, hx, cx, *parameters) = ctx.of, ctx.saved_tensors
        layout, idle = size.layout, size.idle
        dy, dhy, dcy = layout.cotangents(cotangents)
        if dy is dhy is dcy is None:
            return (None,) * len(ctx.needs_input_grad)
        refuse_transforms("backward", dy, dhy, dcy)
        _alive = parameters[0].detach()
        w, (_, _, wants_dx, wants_dhx, wants_dcx, *_) = weights_now(found.desc, found, parameters), ctx.needs_input_grad
        dhx = _begun(dhy, size.states[0], found.dtype)
        dcx = None if size.cells is None else _begun(dcy, size.cells, found.dtype)
        given = _read(x, layout.order), _read(dy, layout.order), dhx.data_ptr()
        if is_copied:
            call = _taken(found, size)
            np.copyto(call.kept, kept.numpy())
        else:
            call = saved_by(kept).call
        aligned = w.nbytes in _ALIGNED_BYTES
        dw = torch.empty(w.shape, dtype=found.dtype).numpy() if aligned else np.empty(w.shape, w.dtype)
        given = *given, 0 if dcx is None else dcx.data_ptr(), dw, wants_dx, wants_dhx
        if call.is_brief:
            dx = call.backward(w, *given)
        else:
            with threads():
                dx = call.backward(w, *given)
        if is_copied:
            call.give_back(idle)
        dx = from_numpy(layout.own(dx)) if wants_dx else None
        found = dx, dhx if wants_dhx else None, dcx if wants_dcx else None, *views(found.desc, dw)
        return None, None, *once(found, x, dy, dhy, dcy, hx, cx, *parameters)


def _taken(found: Found, size: Size) -> Any:
    """One of the idle calls of this size, or a new one; another thread may take the last one meanwhile."""
    try:
        return size.idle.pop()
    except IndexError:
        return engine.small_calls().SmallCall(found.desc, *size.layout.shape, size.threads)


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
    if tensor._is_zerotensor():  # it has no memory
        return np.zeros(tensor.shape, str(tensor.dtype).removeprefix("torch."))
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor.data_ptr()
    return np.ascontiguousarray(to_array(tensor))


def _begun(given: Any, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """What the gradient of a state begins from: a copy of what is given, or zeros."""
    if given is None:
        return torch.zeros(shape, dtype=dtype)
    if given.requires_grad or given.is_neg() or not given.is_contiguous():
        given = given.detach().resolve_neg().contiguous()
    return given.clone()


# PyTorch's own looks for transforms first, in 4 us: none is about where a call is plain.
apply = super(torch.autograd.Function, SmallRecurrence).apply


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
