"""Calls with plain tensors, prepared for their size: as in `function`, without what they do not need."""

from __future__ import annotations

from ctypes import memmove
from operator import is_
from sys import getrefcount
from typing import Any

import numpy as np
import torch

from rnnkit.descriptor.weights import num_weights
from rnnkit.network import engine
from rnnkit.torch.arrays import to_array
from rnnkit.torch.function import once, refuse_transforms, saved_by, views, weights_now
from rnnkit.torch.layout import BATCH_FIRST, ONE_STEP, STEPS_FIRST, Layout
from rnnkit.torch.plain import Found, Size
from rnnkit.torch.threads import threads

_ALIGNED_BYTES = range(1 << 17, 1 << 22)
"""Of the weights' gradient, with which it is in PyTorch's memory, which is aligned as NumPy's is not: to write 1 MiB
there takes 11 us in place of 17, and to add it 2 less (Zen 5). Of larger arrays NumPy has huge pages.
"""
_SPARE_BYTES = 1 << 22
"""Of the weights' gradient, at most, whose memory is used again."""


def _references_alone() -> int:
    """What `getrefcount` says of an array that nobody but a variable has: it depends on the version of Python."""
    array = np.empty(0)
    return getrefcount(array)


_ALONE = _references_alone()

from_numpy = torch.from_numpy


class SmallRecurrence(torch.autograd.Function):
    """The network, in a call whose arguments are plain and whose parameters are where they were found."""

    @staticmethod
    def forward(ctx, found, size, parameters, x, hx, cx, *weights):
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
        ctx.of = found, size, call.is_copied, len(weights) == 1 < len(parameters)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, *cotangents):
        (found, size, is_copied, are_joined), (x, kept, hx, cx, *parameters) = ctx.of, ctx.saved_tensors
        layout, idle = size.layout, size.idle
        dy, dhy, dcy = layout.cotangents(cotangents)
        if dy is dhy is dcy is None:
            return (None,) * len(ctx.needs_input_grad)
        refuse_transforms("backward", dy, dhy, dcy)
        _alive = parameters[0].detach()
        w, (wants_dx, wants_dhx, wants_dcx, *_) = weights_now(found.desc, found, parameters), ctx.needs_input_grad[3:]
        dhx = _begun(dhy, size.states[0], found.dtype)
        dcx = None if size.cells is None else _begun(dcy, size.cells, found.dtype)
        given = _read(x, layout.order), _read(dy, layout.order), dhx.data_ptr()
        if is_copied:
            call = _taken(found, size)
            _write_back(call, kept)
        else:
            call = saved_by(kept).call
        dw = _new_gradient(found)
        given = *given, 0 if dcx is None else dcx.data_ptr(), dw, wants_dx, wants_dhx
        if call.is_brief:
            dx = call.backward(w, *given)
        else:
            with threads():
                dx = call.backward(w, *given)
        if is_copied:
            call.give_back(idle)
        dx = from_numpy(layout.own(dx)) if wants_dx else None
        dws = (from_numpy(dw),) if are_joined else views(found.desc, dw)
        if dw.nbytes <= _SPARE_BYTES:
            found.spare.append(dw)
        gradients = dx, dhx if wants_dhx else None, dcx if wants_dcx else None, *dws
        return None, None, None, *once(gradients, x, dy, dhy, dcy, hx, cx, *parameters)


def _taken(found: Found, size: Size) -> Any:
    """One of the idle calls of this size, or a new one; another thread may take the last one meanwhile."""
    try:
        return size.idle.pop()
    except IndexError:
        return engine.small_calls().SmallCall(found.desc, *size.layout.shape, size.threads)


def _new_gradient(found: Found) -> np.ndarray:
    """Memory for the weights' gradient: that of the call before, if nobody has a view of it.

    In a chain of calls autograd adds each gradient to that of the first. New memory of 1 MiB took 10 us more in each:
    the C library returns it to the system now and then.
    """
    w = found.weights
    try:
        dw = found.spare.pop()
        if getrefcount(dw) == _ALONE:
            return dw
    except IndexError:  # the first time, or another thread is at work with it
        pass
    aligned = w.nbytes in _ALIGNED_BYTES
    return torch.empty(w.shape, dtype=found.dtype).numpy() if aligned else np.empty(w.shape, w.dtype)


def _write_back(call: Any, kept: torch.Tensor) -> None:
    """Let the call have what another one kept, in half of the time that takes with arrays."""
    if kept.nbytes == call.kept.nbytes and kept.is_cpu and kept.is_contiguous():
        memmove(call.kept_address, kept.data_ptr(), kept.nbytes)
    else:  # a hook has changed it
        np.copyto(call.kept, kept.numpy())


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
    return address or _copied_from(tensor)


def _copied_from(tensor: torch.Tensor) -> np.ndarray:
    """A copy of a tensor that has no memory, or not as the kernels read it."""
    if tensor._is_zerotensor():
        return np.zeros(tensor.shape, str(tensor.dtype).removeprefix("torch."))
    return np.ascontiguousarray(to_array(tensor))


def _begun(given: Any, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """What the gradient of a state begins from: a copy of what is given, or zeros."""
    if given is None:
        return torch.zeros(shape, dtype=dtype)
    if given.requires_grad or given.is_neg() or not given.is_contiguous():
        given = given.detach().resolve_neg().contiguous()
    return given.clone()


class _Joined(torch.autograd.Function):
    """What stands for all parameters in the calls of a chain, and has no memory: its gradient is the flat one."""

    @staticmethod
    def forward(ctx, desc, *parameters):
        ctx.desc = desc
        return parameters[0].new_empty(1).expand(num_weights(desc))

    @staticmethod
    def backward(ctx, dw):
        return None, *once(views(ctx.desc, to_array(dw.contiguous())), dw)


# PyTorch's own looks for transforms first, in 4 us: none is about where a call is plain.
_apply, _join = (super(torch.autograd.Function, one).apply for one in (SmallRecurrence, _Joined))


def apply(found: Found, size: Size, x: Any, hx: Any, cx: Any, *parameters: Any) -> tuple[torch.Tensor, ...]:
    """The results of a call that somebody may want a gradient of."""
    weights = parameters if size.layout.shape[0] > 1 else (_joined(found, parameters),)
    return _apply(found, size, parameters, x, hx, cx, *weights)


def _joined(found: Found, parameters: tuple[Any, ...]) -> torch.Tensor:
    """The same for all calls of one step, which come in chains: autograd adds up one gradient in place of several, and
    they are taken apart once. That takes 8 us less of each call of an LSTM."""
    wanted = [one.requires_grad for one in parameters]
    for own, before, joined in found.joined:
        if before == wanted and all(map(is_, own, parameters)):
            return joined
    joined = _join(found.desc, *parameters)
    found.joined.append((parameters, wanted, joined))
    return joined


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
