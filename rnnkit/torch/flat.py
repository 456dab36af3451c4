"""A network with flat weights on tensors, for adapters that have no module."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.torch import equations, fallback
from rnnkit.torch.function import Call, Recurrence, blocks_of, infer
from rnnkit.torch.layout import Layout, concatenate_states, split_states


class _UntracedRecurrence(Recurrence):
    """Dynamo, too, would trace a backward within the function that it compiles."""

    backward = staticmethod(_disable_dynamo(Recurrence.backward))


def run(
    desc: RNNDescriptor, w: Tensor, x: Tensor, states: Sequence[Tensor], mask: Any, seed: Any = None
) -> tuple[Tensor, list[Tensor]]:
    """Run a network, with a gradient if one may be needed: on the engine, or where that cannot on PyTorch's operations.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    w : Tensor (num_weights,)
        The flat weights.
    x : Tensor (T, N, I)
        Input, time first.
    states : sequence of Tensor (L*D, N, ...)
        The initial states: h, then the others.
    mask : Tensor (T, N) of bool, or None
        Steps that are not skipped.
    seed : integer Tensor or int, optional
        Of dropout and noises; None: neither is applied.

    Returns
    -------
    y : Tensor (T, N, D*P)
        The output.
    states : list of Tensor
        The states after each sequence's last step.
    """
    layout, count = Layout(tuple(x.shape[:2])), len(states) - 1
    if x.device.type == "meta":  # Keras asks for shapes
        return x.new_empty((*layout.shape, desc.num_directions * desc.output_size)), [*map(torch.empty_like, states)]
    desc = desc if seed is not None else desc.evaluating
    tensors = x, states[0], concatenate_states(states[1:]) if count else None
    parameters = [w[at].view(shape) for at, shape in blocks_of(desc)]
    reason = fallback.of_device(desc, layout.shape, x.device, masked=mask is not None)
    if reason := reason or fallback.transformed(*tensors, w):
        fallback.warn("forward", reason)
        drawn = equations.draw(desc, layout.shape, x)
        found = equations.results(desc, layout, {"mask": mask}, drawn, (*tensors, *parameters))
    else:
        seed = int(seed) if desc.draws else None
        call = Call(desc, layout, None, None, None if mask is None else mask.detach().cpu().numpy(), seed)
        wants = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (*tensors, w))
        kind = _UntracedRecurrence if "torch._dynamo" in sys.modules else Recurrence
        found = (kind.apply if wants or desc.draws else infer)(call, *tensors, *parameters)
    y, h, *others = found
    return y, [h, *(split_states(others[0], count) if count else ())]
