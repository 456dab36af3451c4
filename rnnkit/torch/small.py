"""Small training calls with plain tensors: as `function.Recurrence`, without what they do not need."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch

from rnnkit.call import debugging
from rnnkit.network import engine
from rnnkit.torch.function import once, refuse_transforms, saved_by, to_array, views, weights_now
from rnnkit.torch.plain import Found
from rnnkit.torch.threads import threads

_SIZES = 16  # of which a module keeps what was laid out


class Size(NamedTuple):
    """A size of a module's small calls, with those of them that are idle."""

    seq_len: int
    batch_size: int
    batch_first: bool
    threads: int
    idle: deque[Any]


def size_of(found: Found, x: torch.Tensor, batch_first: bool) -> Size | None:
    """The size of a training call; None if it is not a small one, or `rnnkit.set_debug` is to look at it."""
    if debugging.is_on():
        return None
    seq_len, batch_size, _ = x.shape
    if batch_first:
        seq_len, batch_size = batch_size, seq_len
    key = seq_len, batch_size, batch_first, torch.get_num_threads()
    size = found.sizes.get(key)
    if size is None and engine.small_calls().is_small(found.desc, seq_len, batch_size):
        if len(found.sizes) >= _SIZES:
            found.sizes.clear()
        size = found.sizes[key] = Size(*key, deque())
    return size


class SmallRecurrence(torch.autograd.Function):
    """The network, in a call whose arguments are plain and whose parameters are where they were found."""

    @staticmethod
    def forward(ctx, found, size, x, hx, cx, *parameters):
        swaps = size.batch_first
        kept = parameters[0].detach()  # with the memory of all, whatever happens to the module meanwhile
        own = found.desc, size.seq_len, size.batch_size, size.threads
        kept.lease = held = engine.small_calls().taken(*own, size.idle)
        y, hy, cy = _run(held.call, held.call.forward, found.weights, _array(x, swaps), _array(hx), _array(cx))
        y = torch.from_numpy(np.ascontiguousarray(y.swapaxes(0, 1)) if swaps else y)
        # Autograd drops what is saved when nobody needs it any more, and says so where somebody does; and it notices
        # changes of x and the weights, which backward reads again. A gradient depends on initial states, too.
        states = (state if state is not None and state.requires_grad else None for state in (hx, cx))
        ctx.save_for_backward(x, kept, *states, *parameters)
        ctx.found, ctx.size = found, size
        ctx.set_materialize_grads(False)
        if cy is None:
            return y, torch.from_numpy(hy)
        return y, torch.from_numpy(hy), torch.from_numpy(cy)

    @staticmethod
    def backward(ctx, dy, dhy, dcy=None):
        found, swaps, (x, kept, *others) = ctx.found, ctx.size.batch_first, ctx.saved_tensors
        if dy is None and dhy is None and dcy is None:
            return (None,) * len(ctx.needs_input_grad)
        refuse_transforms("backward", dy, dhy, dcy)
        call, (_, _, wants_dx, wants_dhx, wants_dcx, *_) = saved_by(kept).call, ctx.needs_input_grad
        w = weights_now(found.desc, found, others[2:])
        arrays = _array(x, swaps), _array(dy, swaps), _array(dhy), _array(dcy)
        dx, dhx, dcx, dw = _run(call, call.backward, w, *arrays, wants_dx, wants_dhx)
        dx = torch.from_numpy(dx.swapaxes(0, 1) if swaps else dx) if wants_dx else None
        dhx = torch.from_numpy(dhx) if wants_dhx else None
        dcx = torch.from_numpy(dcx) if wants_dcx else None
        return None, None, *once((dx, dhx, dcx, *views(found.desc, dw)), x, dy, dhy, dcy, *others)


def _run(call: Any, function: Any, *arguments: Any) -> Any:
    """The results of a function of a call, on PyTorch's threads where they pay."""
    if call.is_brief:
        return function(*arguments)
    with threads():
        return function(*arguments)


def _array(tensor: Any, swaps: bool = False) -> Any:
    if tensor is None:
        return None
    is_lazy = tensor.requires_grad or tensor.is_neg()
    array = to_array(tensor) if is_lazy else tensor.numpy()  # which takes half of the time
    return array.swapaxes(0, 1) if swaps else array
