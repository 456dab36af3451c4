"""Prepared calls with plain tensors: `function` without the general cases."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import memmove
from functools import partial
from typing import Any

import numpy as np
import torch

from rnnkit.call.pool import Lease
from rnnkit.torch import chains, fallback
from rnnkit.torch.arrays import to_array
from rnnkit.torch.fallback import changes_of
from rnnkit.torch.function import Call, by_equations, input_to_save, keeps_graph, lease_of, weights_of
from rnnkit.torch.gradient_memory import give_back, new_gradient
from rnnkit.torch.layout import BATCH_FIRST, ONE_STEP, STEPS_FIRST, Layout
from rnnkit.torch.plain import FlatParameters, PreparedSize
from rnnkit.torch.threads import threads

from_numpy = torch.from_numpy


class SmallRecurrence(torch.autograd.Function):
    """The network, in a call with plain arguments and parameters that have not moved."""

    @staticmethod
    def forward(ctx, flat, size, seed, tensors, sums, x, hx, cx, *weights):
        """Run the network. `tensors` are x, hx, cx and the parameters; `weights` these, or a chain's placeholder."""
        layout, calls = size.layout, size.calls
        call = calls.take()
        arguments = calls.seq_len, flat.weights, _read(x, layout.order), _read(hx), _read(cx), seed
        if calls.is_single_threaded:
            y, hy, cy = call.forward(*arguments)
        else:
            with threads():
                y, hy, cy = call.forward(*arguments)
        results = _copied(layout, y, hy, cy)
        copied = (call.capacity, call.generation) if call.is_copied else None  # read before the call is released
        if copied:
            kept = from_numpy(call.ws_memory.copy())
            calls.shelf.give_back(call)
        else:
            kept = flat.aliases[0].data  # a tensor that is cheap to make, with its own version counter
            kept.lease = Lease(call, calls.shelf)
        # save_for_backward frees tensors after use and detects in-place changes of x and the weights, which backward
        # reads again.
        wants_dhx = (
            layout.shape[0] > 1 or (hx is not None and hx.requires_grad) or (cx is not None and cx.requires_grad)
        )
        reads = flat.reads[x.requires_grad, wants_dhx]
        ctx.save_for_backward(input_to_save(flat.desc, tensors), kept, *reads.aliases)
        ctx.of, ctx.given = (flat, size, copied, sums, reads), (tensors, changes_of(tensors))
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, *cotangents):
        flat, size, copied, sums, reads = ctx.of
        x, kept, *saved = ctx.saved_tensors
        layout, calls = size.layout, size.calls
        dy, dhy, dcy = layout.cotangents(cotangents)
        if dy is dhy is dcy is None:
            return (None,) * len(ctx.needs_input_grad)
        w, (wants_dx, wants_dhx, wants_dcx, *wants_dws) = weights_of(flat, reads, saved), ctx.needs_input_grad[5:]
        if copied:
            capacity, generation = copied
            call = calls.take(capacity)
            if call.generation != generation:
                _write_back(call, kept)
        else:
            call = lease_of(kept).held
        again = None
        if (reason := fallback.transformed(dy, dhy, dcy)) or torch.is_grad_enabled():
            of_call = Call(flat.desc, layout, None, None, None, None)
            run = by_equations(of_call, partial(call.drawn, calls.seq_len))
            given = fallback.Given(*ctx.given)
            again = run, given.unchanged(flat.addresses), cotangents
        elif not keeps_graph():
            ctx.given = None
        if reason:
            fallback.warn("backward", reason)
            if sums is not None:
                wants_dws = [one.requires_grad for one in given.tensors[3:]]
            gradients = fallback.gradients(*again, [wants_dx, wants_dhx, wants_dcx, *wants_dws])
            if copied:
                calls.shelf.give_back(call)
            return None, None, None, None, None, *_for_chain(gradients, given, sums)
        dhx = np.zeros(size.states[0], w.dtype) if dhy is None else _copy(dhy)
        dcx = 0 if size.cells is None else np.zeros(size.cells, w.dtype) if dcy is None else _copy(dcy)
        total = None if sums is None or again else sums.current()
        gradient = new_gradient(flat) if total is None else None
        dw, gathered = total.place(flat, size) if gradient is None else (gradient.dw, None)
        arguments = _read(x, layout.order), _read(dy, layout.order), dhx, dcx
        arguments = *arguments, dw, wants_dx, wants_dhx, total is None, gathered
        if calls.is_single_threaded:
            dx = call.backward(calls.seq_len, w, *arguments)
        else:
            with threads():
                dx = call.backward(calls.seq_len, w, *arguments)
        if copied:
            calls.shelf.give_back(call)
        dx = from_numpy(layout.to_tensor_layout(dx)) if wants_dx else None
        if total is not None:
            dws = (None,)  # already added to the gradient of this pass
        elif sums is not None and not again:
            dws = (sums.begin(dw),)
        else:
            dws = gradient.tensors()
            give_back(flat, gradient)
        gradients = dx, from_numpy(dhx) if wants_dhx else None, from_numpy(dcx) if wants_dcx else None, *dws
        if again:
            gradients = _for_chain(fallback.differentiable(*again, gradients), given, sums)
        return None, None, None, None, None, *gradients


def _for_chain(gradients: Sequence[Any], given: fallback.Given, sums: Any) -> Sequence[Any]:
    """Return the gradients of x, hx, cx and the parameters: in a chain (`sums`) those of the parameters as one."""
    if sums is None:
        return gradients
    pairs = zip(gradients[3:], given.tensors[3:], strict=True)
    return *gradients[:3], torch.cat([(torch.zeros_like(one) if dw is None else dw).reshape(-1) for dw, one in pairs])


def _write_back(call: Any, kept: torch.Tensor) -> None:
    """Restore a call's saved state, by memmove, which takes half the time of an array copy."""
    call.mark_overwritten()
    if kept.nbytes == call.ws_memory.nbytes and kept.is_cpu and kept.is_contiguous():
        memmove(call.ws_address, kept.data_ptr(), kept.nbytes)
    else:  # changed by a saved-tensor hook
        np.copyto(call.ws_memory, kept.numpy())


def _copied(layout: Layout, y: Any, hy: Any, cy: Any) -> tuple[Any, ...]:
    """Return the results of a small call as tensors; y is a copy, because backward still reads it."""
    if layout.order == ONE_STEP:
        return (from_numpy(hy[0]),) if cy is None else (from_numpy(hy[0]), from_numpy(cy[0]))
    y = from_numpy(layout.to_tensor_layout(y).copy(order="C"))
    return (y, from_numpy(hy)) if cy is None else (y, from_numpy(hy), from_numpy(cy))


def _read(tensor: Any, order: int = STEPS_FIRST) -> np.ndarray | int:
    """Return a kernel argument, time-major: the tensor's address, or a copy if it is strided; 0 for None."""
    if tensor is None:
        return 0
    if order == BATCH_FIRST:
        tensor = tensor.transpose(0, 1)
    address = tensor.data_ptr() if tensor.is_contiguous() and not tensor.is_neg() else 0
    return address or _copy(tensor)


def _copy(tensor: torch.Tensor) -> np.ndarray:
    """Copy a tensor to an array, also one without memory or in a form that kernels cannot read."""
    if tensor.requires_grad or tensor.is_neg() or tensor._is_zerotensor():
        tensor = tensor.detach().resolve_neg().clone()
    return tensor.numpy().copy()


# Skips the check for functorch transforms in Function.apply (4 us): a plain call is in none.
_apply = super(torch.autograd.Function, SmallRecurrence).apply


def apply(flat: FlatParameters, size: PreparedSize, seed: int | None, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run a call of x, hx, cx and the parameters that may need a gradient."""
    is_chain = size.layout.shape[0] == 1 and tensors[1] is not None and tensors[1].requires_grad
    # Without grad mode, in which dropout and noise are drawn, too, the chain's placeholder would have no gradient.
    if not is_chain or not torch.is_grad_enabled():
        return _apply(flat, size, seed, tensors, None, *tensors)
    # hx requires a gradient: a later call of a chain. For a single call the chain's set-up would cost 10 us.
    chain = chains.chain_parameters(flat, tensors[3:])
    return _apply(flat, size, seed, tensors, chain.sums, *tensors[:3], chain.tensor)


def infer(flat: FlatParameters, size: PreparedSize, x: Any, hx: Any, cx: Any) -> tuple[torch.Tensor, ...]:
    """Run a call without a gradient; the parameters have not moved since `plain.find_flat`."""
    layout, inference = size.layout, size.inference
    if inference.takes_addresses:
        arguments = _read(x, layout.order), None if hx is None else _read(hx), None if cx is None else _read(cx)
    else:
        arguments = layout.time_major(to_array(x)), layout.states(to_array(hx)), layout.states(to_array(cx))
    if inference.is_single_threaded:
        y, hy, cy = inference.run(flat.weights, *arguments)
    else:
        with threads():
            y, hy, cy = inference.run(flat.weights, *arguments)
    return tuple(map(from_numpy, layout.results(y, hy, cy)))
