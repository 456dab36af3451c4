"""Calls and derivatives that the engine cannot compute: which they are, and how PyTorch's operations do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from rnnkit.call.options import CUPY, CallOptions, unsupported
from rnnkit.call.steps import steps_of
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.errors import message
from rnnkit.torch.arrays import without_autocast

_transform, _transforms = torch._C._functorch.peek_interpreter_stack, torch._C._functorch.get_interpreter_stack
_is_batched = torch._C._functorch.is_legacy_batchedtensor  # made by `torch.autograd.grad(is_grads_batched=True)`
_Kind = torch._C._functorch.TransformType
REASONS = {
    "vmap": "it is within torch.vmap",
    "jvp": "forward-mode derivatives are wanted",
    "again": "second derivatives are wanted",
    "batched": "its gradients are batched (is_grads_batched)",
}
_NO_CUPY = "CuPy is not installed" if find_spec("cupy") is None else None  # dynamo cannot trace this
_OF_PYTORCH = nn.RNN, nn.LSTM, nn.GRU, nn.RNNCellBase
_NAMES = {_Kind.Vmap: "vmap", _Kind.Jvp: "jvp"}


class FallbackWarning(UserWarning):
    """A call runs on PyTorch's operations, at their speed, because the engine cannot run it.

    To make it an error: ``warnings.simplefilter("error", rnnkit.torch.FallbackWarning)``.
    """


def warn(function: str, reason: str) -> None:
    text = f"{function}: this call runs on PyTorch's operations, not on the engine: {reason}"
    warnings.warn(text, FallbackWarning, stacklevel=2)


def transformed(*tensors: Any) -> str | None:
    """Return the reason, if the engine cannot run a call in the transforms around it or of its tensors, or None.

    The engine computes `torch.func.grad` and `vjp`.
    """
    if _transform() is not None:
        for one in _transforms():
            if one.key() in _NAMES:
                return REASONS[_NAMES[one.key()]]
    is_forward = forward_ad._current_level >= 0
    for one in tensors:  # in every backward
        if one is not None:
            if _is_batched(one):
                return REASONS["batched"]
            if is_forward and forward_ad.unpack_dual(one).tangent is not None:
                return REASONS["jvp"]
    return None


def of_place(module: Any, data: Tensor, packed: Any, options: Any) -> str | None:
    """Return the reason, if the engine cannot run a call on this device, or None."""
    if data.device.type != "cuda":
        return _without_cuda(data.device)
    if module._rnnkit_has_own_cell and _NO_CUPY:
        return _NO_CUPY
    if torch.compiler.is_dynamo_compiling():  # it cannot trace the rest
        return None
    swaps = -1 if module._rnnkit_batch_first else 1
    shape = data.shape[:2][::swaps] if packed is None else (len(packed.batch_sizes), int(packed.batch_sizes[0]))
    given = {"resets": options.resets is not None, "masked": options.mask is not None}
    return of_device(module._rnnkit_desc(0.0), shape, data.device, **given)


def of_device(desc: RNNDescriptor, shape: tuple[int, int], device: torch.device, **given: bool) -> str | None:
    """Return the reason, if the engine cannot run a network over (T, N) steps on a device, or None.

    `given` says which of "resets" and "masked" a call has.
    """
    if device.type != "cuda":
        return _without_cuda(device)
    entry = unsupported(desc, CallOptions(steps_of(*shape), **given), "forward", CUPY)
    return None if entry is None else entry.cure.partition(":")[0]


def _without_cuda(device: torch.device) -> str | None:
    return None if device.type == "cpu" else f"the engine does not run on {device}"


def of_pytorch(module: Any, data: Tensor, hx: Any) -> str | None:
    """Return the reason, if a call without options runs on PyTorch's own implementation: on devices that the engine
    does not know; or None."""
    if data.device.type in ("cpu", "cuda") or not isinstance(module, _OF_PYTORCH):
        return None
    if hx is None and getattr(module, "learned_initial_state", False):
        return None
    return _without_cuda(data.device)


Run = Callable[[Sequence[Any]], Sequence[Tensor]]
"""Of x, hx, cx and the parameters, each a tensor or None: the results of a call by PyTorch's operations."""


def gradients(run: Run, tensors: Sequence[Any], cotangents: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """Return the gradients of the `wanted` tensors, None for others; they can be differentiated, mapped and so on.

    `cotangents` are those of the results, each a tensor or None.
    """

    def results(*values: Tensor) -> tuple[Tensor, ...]:
        found = run(_filled(tensors, wanted, values))
        return tuple(one for one, given in zip(found, cotangents, strict=True) if given is not None)

    given = tuple(one for one in cotangents if one is not None)
    found = _vjp(results, [*compress(tensors, wanted)], given, torch.is_grad_enabled())
    return _filled([None] * len(tensors), wanted, found)


def _vjp(
    function: Callable[..., Sequence[Tensor]], values: Sequence[Tensor], cotangents: Sequence[Any], again: bool
) -> Sequence[Tensor]:
    """Return the vector-Jacobian product of a function at some values; with `again` it can be differentiated."""
    if _transform() is not None:
        return torch.func.vjp(function, *values)[1](tuple(cotangents))
    with torch.enable_grad(), without_autocast(values[0].device):  # half the cost of torch.func
        is_alone = not again and forward_ad._current_level < 0
        own = [one.detach() if is_alone else one.view_as(one) for one in values]
        own = [one if one.requires_grad else one.requires_grad_() for one in own]
        pairs = [pair for pair in zip(function(*own), cotangents, strict=True) if pair[0].requires_grad]
        if not pairs:  # of no steps
            return [torch.zeros_like(one) for one in own]
        results, given = zip(*pairs, strict=True)
        return torch.autograd.grad(results, own, given, create_graph=again, materialize_grads=True)


def _filled(tensors: Sequence[Any], flags: Sequence[bool], values: Iterable[Tensor]) -> list[Any]:
    """Return the tensors, with others where the flags are set."""
    others = iter(values)
    return [next(others) if flag else one for one, flag in zip(tensors, flags, strict=True)]


def differentiable(run: Run, tensors: Sequence[Any], cotangents: Sequence[Any], found: Sequence[Any]) -> Sequence[Any]:
    """Return the engine's gradients `found` of `tensors`, each a tensor or None, such that they have gradients."""
    return _Gradients.apply(run, len(tensors), *found, *tensors, *cotangents)


class _Gradients(torch.autograd.Function):
    """Identity of the engine's gradients. Its backward computes them anew by PyTorch's operations."""

    @staticmethod
    def forward(run, count, *tensors):
        return tuple(None if one is None else one.view_as(one) for one in tensors[:count])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.run, ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors[ctx.count :])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, *of_gradients):
        count, saved, wanted = ctx.count, ctx.saved_tensors, ctx.needs_input_grad[2 + ctx.count :]
        used = [one is not None for one in of_gradients]
        found: Sequence[Any] = [None] * len(saved)
        if any(used) and any(wanted):
            warn("backward", REASONS["again"])

            def of(*values: Tensor) -> tuple[Tensor, ...]:
                every = _filled(saved, wanted, values)
                return tuple(compress(gradients(ctx.run, every[:count], every[count:], used), used))

            chosen = [*compress(saved, wanted)], [*compress(of_gradients, used)]
            found = _filled(found, wanted, _vjp(of, *chosen, torch.is_grad_enabled()))
        return *[None] * (2 + count), *found


class Given(NamedTuple):
    """What a forward took, x, hx, cx and the parameters, and their `changes_of`: derivatives beyond the first need the
    values again. autograd checks only what the engine's backward reads."""

    tensors: Sequence[Any]
    changes: int

    def unchanged(self, addresses: Sequence[int]) -> Sequence[Any]:
        """Return the tensors. `addresses` are those of the parameters in forward, if they are known.

        Raises
        ------
        RuntimeError
            One has been changed since.
        """
        moved = [one.data_ptr() for one in self.tensors[3:]] != list(addresses) if addresses else False
        if moved or changes_of(self.tensors) != self.changes:
            expected = "be as they were in forward, whose values second derivatives need"
            raise RuntimeError(message("backward", "input, states and parameters", expected, "changed ones"))
        return self.tensors


def changes_of(tensors: Sequence[Any]) -> int:
    """Return how often the tensors have been changed in place; those of inference mode do not count it."""
    total = 0
    try:
        for one in tensors:  # in every call: a loop takes 1 us, `map` 2
            if one is not None:
                total += one._version
    except RuntimeError:
        return changes_of([one for one in tensors if one is not None and not one.is_inference()])
    return total
