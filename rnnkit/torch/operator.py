"""torch.library operators of the network, for compiled, exported or transformed calls.

`torch.compile`, `torch.export` and `make_fx` record ``rnnkit::recurrent``, or with a gradient
``rnnkit::recurrent_forward`` and ``rnnkit::recurrent_backward``. Eager calls use `function`, which is cheaper. In all
three operators, sequences are time-major and parameters are in the flat buffer's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rnnkit.call.drawn import drawn
from rnnkit.descriptor.weights import weight_layout
from rnnkit.torch import equations, fallback, function
from rnnkit.torch.descriptor import ModuleConfig, descriptor
from rnnkit.torch.function import Call, Layout

_is_compiled = torch.compiler.is_dynamo_compiling
_is_exported = getattr(torch.compiler, "is_exporting", lambda: False)  # before PyTorch 2.6 the modes below tell
_mode_of, _modes = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey
_transform = torch._C._functorch.peek_interpreter_stack


@torch.compiler.assume_constant_result
def names(dtype: torch.dtype, *network: Any) -> list[str]:
    """Return the names of a module's parameters in the flat buffer's order."""
    return [block.name for block in weight_layout(descriptor(ModuleConfig(*network), dtype))]


def is_needed() -> bool:
    """Whether a call is recorded or its tensors have no data: dynamo, export, make_fx, fake tensors, torch.func."""
    if _is_compiled() or _is_exported():
        return True
    return any(_mode_of(key) is not None for key in (_modes.PROXY, _modes.FAKE)) or _transform() is not None


def call(network: ModuleConfig, inputs: tuple[Any, ...], parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return y, hy and cy for inputs (x, hx, cx, lengths, resets, mask, seed); cy is empty without a cell state."""
    x, hx, cx, *options = inputs
    if not _is_compiled() and _transform() is not None:  # a transform skips the autograd of operators
        return _Recorded.apply(network, x, hx, cx, *options, *parameters)[:3]
    return torch.ops.rnnkit.recurrent(x, hx, cx, parameters, *options, *network)


class _Recorded(torch.autograd.Function):
    """The network as operators that a trace can record."""

    @staticmethod
    def forward(network, x, hx, cx, lengths, resets, mask, seed, *parameters):
        return torch.ops.rnnkit.recurrent_forward(x, hx, cx, parameters, lengths, resets, mask, seed, *network)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.network, x, hx, cx, *options = inputs
        *_, kept = output
        ctx.save_for_backward(kept, x, hx, cx, *options)
        ctx.mark_non_differentiable(kept)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dy, dhy, dcy, _):
        kept, x, hx, cx, lengths, resets, mask, seed, *parameters = ctx.saved_tensors
        if dy is None and dhy is None and dcy is None:
            return (None,) * len(ctx.needs_input_grad)
        cotangents, reason, again = (dy, dhy, dcy), fallback.transformed(dy, dhy, dcy), ()
        if reason or torch.is_grad_enabled():
            call = _untouched(ctx.network, x, parameters, lengths, resets, mask)
            run = function.by_equations(call, lambda: drawn(function.lease_of(kept).workspace))
            again = run, (x, hx, cx, *parameters), cotangents[: call.layout.num_results(call.desc)]
        if reason:
            fallback.warn("backward", reason)
            wanted = ctx.needs_input_grad
            gradients = fallback.gradients(*again, (*wanted[1:4], *wanted[8:]))
        else:
            dx, dhx, dcx, dws = torch.ops.rnnkit.recurrent_backward(kept, x, parameters, *cotangents, *ctx.network)
            gradients = dx, None if hx is None else dhx, None if cx is None else dcx, *dws
            gradients = fallback.differentiable(*again, gradients) if again else gradients
        dx, dhx, dcx, *dws = gradients
        return None, dx, dhx, dcx, None, None, None, None, *dws


def _untouched(network: ModuleConfig, x: Tensor, parameters: Sequence[Tensor], *marks: Any) -> Call:
    """Return the call with its lengths, resets and mask as they are: their values may not be known."""
    return Call(descriptor(network, parameters[0].dtype), Layout(tuple(x.shape[:2])), *marks, None)


def _by_equations(x, hx, cx, parameters, lengths, resets, mask, seed, *network):
    reason = fallback.transformed(x, hx, cx, *parameters) or "torch.compile has recorded torch.func.grad"
    fallback.warn("forward", reason)
    call = _untouched(ModuleConfig(*network), x, parameters, lengths, resets, mask)
    run = function.by_equations(call, lambda: equations.draw(call.desc, call.layout.shape, x))
    return _padded(run((x, hx, cx, *parameters)))


def _call_of(
    network: ModuleConfig,
    x: Tensor,
    parameters: Sequence[Tensor],
    lengths: Any = None,
    resets: Any = None,
    mask: Any = None,
    seed: Any = None,
) -> Call:
    desc = descriptor(network, parameters[0].dtype)
    given = (None if array is None else array.cpu().numpy() for array in (lengths, resets, mask))
    seed, precision = None if seed is None else int(seed), network.precision or None
    return Call(desc, Layout(tuple(x.shape[:2])), *given, seed, precision=precision)


def _recurrent(x, hx, cx, parameters, lengths, resets, mask, seed, *network):
    call = _call_of(ModuleConfig(*network), x, parameters, lengths, resets, mask, seed)
    if call.desc.draws:
        return _recurrent_forward(x, hx, cx, parameters, lengths, resets, mask, seed, *network)[:3]
    return _padded(function.infer(call, x, hx, cx, *parameters))


def _recurrent_forward(x, hx, cx, parameters, lengths, resets, mask, seed, *network):
    call = _call_of(ModuleConfig(*network), x, parameters, lengths, resets, mask, seed)
    results, kept = function.forward(call, x, hx, cx, parameters)
    return *_padded(results), kept


def _recurrent_backward(kept, x, parameters, dy, dhy, dcy, *network):
    call = _call_of(ModuleConfig(*network), x, parameters)
    dx, dhx, dcx, dws = function.backward(call, kept, x, (), dy, dhy, dcy if call.desc.has_cell_state else None)
    return dx, dhx, x.new_empty(0) if dcx is None else dcx, dws


def _padded(results: Sequence[Tensor]) -> Sequence[Tensor]:
    """Pad the results to y, hy and cy (empty without a cell state), as an operator has a fixed schema."""
    return results if len(results) == 3 else (*results, results[0].new_empty(0))


def _fake_recurrent(x, hx, cx, parameters, lengths, resets, mask, seed, *network):
    desc, (seq_len, batch_size, _) = descriptor(ModuleConfig(*network), parameters[0].dtype), x.shape
    rows = desc.num_pseudo_layers
    y = x.new_empty(seq_len, batch_size, desc.num_directions * desc.output_size)
    hy = x.new_empty(rows, batch_size, desc.output_size)
    return y, hy, x.new_empty((rows, batch_size, desc.states_size) if desc.has_cell_state else 0)


def _fake_forward(x, *others):
    return *_fake_recurrent(x, *others), x.new_empty(0, device="cpu", dtype=torch.float32)


def _fake_backward(kept, x, parameters, dy, dhy, dcy, *network):
    _, dhx, dcx = _fake_recurrent(x, None, None, parameters, None, None, None, None, *network)
    dws = [x.new_empty(one.shape) for one in parameters]
    return x.new_empty(x.shape), dhx, dcx, dws


def _with_gradient(x, hx, cx, parameters, lengths, resets, mask, seed, *network):
    """Run `_recurrent` under autograd."""
    if _transform() is not None:  # in compiled code; others go through `call`
        return _by_equations(x, hx, cx, parameters, lengths, resets, mask, seed, *network)
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, hx, cx, *parameters)):
        return _Recorded.apply(ModuleConfig(*network), x, hx, cx, lengths, resets, mask, seed, *parameters)[:3]
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.rnnkit.recurrent(x, hx, cx, parameters, lengths, resets, mask, seed, *network)


_library = torch.library.Library("rnnkit", "DEF")


def _define(name: str, arguments: str, results: str, run: Any, fake: Any) -> None:
    network = "str mode, int input_size, int hidden_size, int num_layers, bool bidirectional, bool bias, int proj_size"
    network = f"{network}, float dropout, bool training, bool learned_initial_state, str precision=''"
    _library.define(f"{name}({arguments}, {network}) -> {results}")
    for device in "CPU", "CUDA":
        _library.impl(name, run, device)
    torch.library.register_fake(f"rnnkit::{name}", fake, lib=_library)


_options = "Tensor? lengths, Tensor? resets, Tensor? mask, Tensor? seed"
_inputs = f"Tensor x, Tensor? hx, Tensor? cx, Tensor[] parameters, {_options}"
_saved = "Tensor kept, Tensor x, Tensor[] parameters"
_cotangents = "Tensor? dy, Tensor? dhy, Tensor? dcy"
_define("recurrent", _inputs, "(Tensor, Tensor, Tensor)", _recurrent, _fake_recurrent)
_define("recurrent_forward", _inputs, "(Tensor, Tensor, Tensor, Tensor)", _recurrent_forward, _fake_forward)
_results = "(Tensor, Tensor, Tensor, Tensor[])"
_define("recurrent_backward", f"{_saved}, {_cotangents}", _results, _recurrent_backward, _fake_backward)
_library.impl("recurrent", _with_gradient, "Autograd")
for _name in "recurrent_forward", "recurrent_backward":  # within `_Recorded`, which knows the gradient
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")
_library.impl("recurrent", _by_equations, "FuncTorchBatchedDecomposition")  # where a compiled function is mapped
