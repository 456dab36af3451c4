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

from rnnkit.descriptor.weights import weight_layout
from rnnkit.torch import function
from rnnkit.torch.descriptor import ModuleConfig, descriptor
from rnnkit.torch.function import Call, Layout

_is_compiled, _is_exported = torch.compiler.is_dynamo_compiling, torch.compiler.is_exporting
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
        ctx.network, x, hx, cx, _, _, _, _, *parameters = inputs
        *_, kept = output
        # Initial states are saved because second derivatives, which raise, would depend on them.
        ctx.save_for_backward(kept, x, hx, cx, *parameters)
        ctx.mark_non_differentiable(kept)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dy, dhy, dcy, _):
        kept, x, hx, cx, *parameters = ctx.saved_tensors
        if dy is None and dhy is None and dcy is None:
            return (None,) * len(ctx.needs_input_grad)
        arguments = x, parameters, dy, dhy, dcy
        dx, dhx, dcx, dws = torch.ops.rnnkit.recurrent_backward(kept, *arguments, *ctx.network)
        gradients = dx, None if hx is None else dhx, None if cx is None else dcx, *dws
        dx, dhx, dcx, *dws = function.once_differentiable(gradients, x, hx, cx, dy, dhy, dcy, *parameters)
        return None, dx, dhx, dcx, None, None, None, None, *dws

    @staticmethod
    def vmap(info, dims, *inputs):
        function.refuse_transform("forward")

    @staticmethod
    def jvp(ctx, *tangents):
        function.refuse_transform("forward")


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
    return Call(desc, Layout(tuple(x.shape[:2])), *given, None if seed is None else int(seed))


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
    function.refuse_transforms("forward")  # in compiled code; other transforms go through `call`
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, hx, cx, *parameters)):
        return _Recorded.apply(ModuleConfig(*network), x, hx, cx, lengths, resets, mask, seed, *parameters)[:3]
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.rnnkit.recurrent(x, hx, cx, parameters, lengths, resets, mask, seed, *network)


_library = torch.library.Library("rnnkit", "DEF")


def _define(name: str, arguments: str, results: str, run: Any, fake: Any) -> None:
    network = "str mode, int input_size, int hidden_size, int num_layers, bool bidirectional, bool bias, int proj_size"
    network = f"{network}, float dropout, bool training, bool learned_initial_state"
    _library.define(f"{name}({arguments}, {network}) -> {results}")
    for device in "CPU", "CUDA":
        _library.impl(name, run, device)
    torch.library.register_fake(f"rnnkit::{name}", fake, lib=_library)
    torch.library.register_vmap(f"rnnkit::{name}", _Recorded.vmap, lib=_library)


_options = "Tensor? lengths, Tensor? resets, Tensor? mask, Tensor? seed"
_inputs = f"Tensor x, Tensor? hx, Tensor? cx, Tensor[] parameters, {_options}"
_saved = "Tensor kept, Tensor x, Tensor[] parameters"
_cotangents = "Tensor? dy, Tensor? dhy, Tensor? dcy"
_define("recurrent", _inputs, "(Tensor, Tensor, Tensor)", _recurrent, _fake_recurrent)
_define("recurrent_forward", _inputs, "(Tensor, Tensor, Tensor, Tensor)", _recurrent_forward, _fake_forward)
_results = "(Tensor, Tensor, Tensor, Tensor[])"
_define("recurrent_backward", f"{_saved}, {_cotangents}", _results, _recurrent_backward, _fake_backward)
_library.impl("recurrent", _with_gradient, "Autograd")
