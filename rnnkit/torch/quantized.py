"""Quantized inference of modules: in evaluation mode they run on a plan, which is made anew when weights change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.errors import BackendError, message
from rnnkit.network.plan import Plan, prepare
from rnnkit.torch import plain
from rnnkit.torch.fallback import changes_of
from rnnkit.torch.function import Call, flat_weights, infer_by
from rnnkit.torch.plain import FlatParameters, PreparedSize
from rnnkit.torch.threads import threads

FULL = "rnnkit.torch.accelerate(model), without precision, returns to full precision"


class Packed(NamedTuple):
    """Quantized weights of a module, and what they were made from."""

    plan: Plan[Any]
    precision: str
    source: Any  # `FlatParameters`, or all tensors of the module; kept, so that no others get their addresses
    state: Any  # of these, how often they have been changed


def is_quantized(module: Any) -> bool:
    """Whether the next call of a module runs with quantized weights."""
    return module._rnnkit_precision is not None and not module.training


def infer(module: Any, flat: FlatParameters | None, call: Call, tensors: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Run a call with tensors x, hx, cx and parameters; these are in `flat` and have not moved, if it is given."""
    if call.all_states:
        cure = f"only training has the states after each step: {FULL}"
        raise BackendError(message("forward", "all_states", "be False with quantized weights", True, cure))
    plan = _plan(module, flat, call.desc, tensors[3:])
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors):
        return _WithoutGradient.apply(plan, call, *tensors)
    return infer_by(plan.infer, call, *tensors[:3])


def infer_plain(module: Any, flat: FlatParameters, size: PreparedSize, tensors: Sequence[Any]) -> Sequence[Any]:
    """Run a call with plain tensors x, hx, cx and parameters, which have not moved since `plain.find_flat`."""
    if torch.is_grad_enabled():
        return infer(module, flat, Call(flat.desc, size.layout, None, None, None, None), tensors)
    packed, layout = _plan(module, flat, flat.desc, tensors[3:]).packed, size.layout
    x, hx, cx = (None if one is None else one.detach().numpy() for one in tensors[:3])
    with threads():
        y, hy, cy = packed.infer(layout.time_major(x), layout.states(hx), layout.states(cx), size.inference.options)
    return tuple(map(torch.from_numpy, layout.results(y, hy, cy)))


def _plan(module: Any, flat: FlatParameters | None, desc: RNNDescriptor, parameters: Sequence[Any]) -> Plan[Any]:
    """Return the plan of a module's weights, packed anew if they have changed."""
    cache = module.__dict__.setdefault("_rnnkit_cache", plain.ParameterCache())
    packed, precision, source = cache.packed, module._rnnkit_precision, flat
    if flat is not None:
        state: Any = changes_of(parameters)
        is_same = packed is not None and packed.source is flat
    else:  # parametrizations and pruning compute the weights of these
        source = [*module.parameters(), *module.buffers()]
        state = [(id(one), one.data_ptr(), one._version) for one in source]
        is_same = packed is not None
    if is_same and packed.precision == precision and packed.state == state:
        return packed.plan
    weights = flat_weights(desc, parameters)[0] if flat is None else flat.weights
    plan = prepare(desc, weights, precision=precision)
    cache.packed = Packed(plan, precision, source, state)
    return plan


class _WithoutGradient(torch.autograd.Function):
    """Quantized inference where a gradient may be wanted: backward raises."""

    @staticmethod
    def forward(ctx, plan, call, *tensors):
        return infer_by(plan.infer, call, *tensors[:3])

    @staticmethod
    def backward(ctx, *cotangents) -> NoReturn:
        expected, cure = "be in training mode for a gradient", f"call train(); {FULL}"
        raise BackendError(message("backward", "module with quantized weights", expected, "evaluation mode", cure))
