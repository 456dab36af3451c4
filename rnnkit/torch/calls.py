"""Module calls: check the arguments, run the engine, and shape the results as PyTorch does."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.nn.utils.rnn import PackedSequence

from rnnkit.descriptor.weights import weight_layout
from rnnkit.errors import BackendError, message, wrong_shape, wrong_type
from rnnkit.torch import equations, fallback, operator, plain, quantized, small
from rnnkit.torch.arrays import is_autocast
from rnnkit.torch.descriptor import OTHER_DTYPES
from rnnkit.torch.function import RESTORE, Call, Recurrence, infer
from rnnkit.torch.layout import BATCH_FIRST, ONE_STEP, Layout, concatenate_states, split_states
from rnnkit.torch.plain import FlatParameters, PreparedSize


def run_plain(module: Any, flat: FlatParameters, size: PreparedSize, tensors: tuple[Any, ...]) -> Any:
    """Run a call with plain tensors x, hx, cx and parameters, which have not moved since `plain.find_flat`."""
    draws = flat.desc.draws
    if module._rnnkit_precision is not None and quantized.is_quantized(module):
        results = quantized.infer_plain(module, flat, size, tensors)
    elif not draws and not _wants_gradient(tensors):
        results = small.infer(flat, size, *tensors[:3])
    else:
        seed = int(_new_seed()) if draws else None
        if size.calls is not None:
            results = small.apply(flat, size, seed, tensors)
        else:
            call = Call(flat.desc, size.layout, None, None, None, seed, flat)
            results = Recurrence.apply(call, *tensors)
    count = len(size.states)
    if size.layout.order == ONE_STEP:
        return results if count == 2 else results[0]
    if count > 2:
        return results[0], (results[1], *split_states(results[2], count - 1))
    return results[0], results[1:] if count == 2 else results[1]


def _new_seed() -> Tensor:
    """Draw a seed from PyTorch's generator, so that torch.manual_seed applies."""
    return torch.randint(2**63 - 1, (), device="cpu")


class Options(NamedTuple):
    """Further arguments of a call over sequences."""

    lengths: Any = None
    resets: Any = None
    mask: Any = None
    all_states: bool = False


_NOTHING = Options()


def run_sequences(module: Any, input: Any, hx: Any, options: Options = _NOTHING) -> tuple[Any, ...]:
    """Run any call over sequences."""
    check_kind(input)
    packed = input if isinstance(input, PackedSequence) else None
    data, batch_sizes = (input, None) if packed is None else (packed.data, packed.batch_sizes)
    _refuse_traces()
    if (reason := fallback.of_pytorch(module, data, hx)) and options is _NOTHING:
        fallback.warn("forward", reason)
        return module._rnnkit_forward_of_pytorch(input, hx)
    if packed is None and input.dim() == 2:
        return _run_one(module, input, hx, options)
    states = _states(module, hx)
    module.check_input(data, batch_sizes)
    if states:
        module.check_forward_args(data, _as_given(module, states), batch_sizes)
    if packed is not None and options.lengths is not None:
        raise ValueError(message("forward", "lengths", "be None with a PackedSequence, which has its own", "lengths"))
    output, *states = _results(module, data, states, packed, options)
    if packed is not None:
        output = PackedSequence(output, batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    count = len(module._rnnkit_states)
    each = [_as_given(module, tuple(some)) for some in (states[:count], states[count:]) if some]
    return output, *each


def check_kind(input: Any) -> None:
    """Raise if the input of a call over sequences is neither a tensor nor a PackedSequence."""
    if not isinstance(input, (Tensor, PackedSequence)):
        raise _wrong_kind("a torch.Tensor or a PackedSequence", input)


def _wrong_kind(expected: str, input: Any) -> TypeError:
    cure = "convert it with torch.from_numpy(input)" if isinstance(input, np.ndarray) else ""
    return wrong_type("forward", "input", expected, input, cure)


def _run_one(module: Any, input: Tensor, hx: Any, options: Options) -> tuple[Any, ...]:
    """Run one sequence as a batch of one."""
    axis = 0 if module._rnnkit_batch_first else 1
    states = tuple(state.unsqueeze(1) for state in _states(module, hx))
    given = _as_given(module, states) if states else None
    for name in ("resets", "mask"):
        if (given_marks := getattr(options, name)) is not None:
            marks = torch.as_tensor(given_marks)
            if marks.shape != input.shape[:1]:
                raise wrong_shape("forward", name, tuple(input.shape[:1]), ("seq_len",), tuple(marks.shape))
            options = options._replace(**{name: marks.unsqueeze(axis)})
    output, *each = run_sequences(module, input.unsqueeze(axis), given, options)
    each = [_as_given(module, tuple(state.squeeze(-2) for state in _states(module, one))) for one in each]
    return output.squeeze(axis), *each


def run_step(module: Any, input: Any, hx: Any) -> Any:
    """Run any call of a cell: sequences of one step."""
    if not isinstance(input, Tensor):
        raise _wrong_kind("a torch.Tensor", input)
    if input.dim() not in (1, 2):
        raise ValueError(message("forward", "input", "be a tensor (N, I) or (I,)", input.shape))
    _refuse_traces()
    if reason := fallback.of_pytorch(module, input, hx):
        fallback.warn("forward", reason)
        return module._rnnkit_forward_of_pytorch(input, hx)
    if input.dim() == 1:
        states = tuple(state.unsqueeze(0) for state in _states(module, hx))
        hx = run_step(module, input.unsqueeze(0), _as_given(module, states) if states else None)
        return _as_given(module, tuple(state.squeeze(0) for state in _states(module, hx)))
    dtype, shape = module._rnnkit_dtype(), (input.shape[0], module.hidden_size)
    _check_tensor("input", input, (shape[0], module.input_size), dtype)
    states = _states(module, hx)
    for name, state in zip(("hx", "cx"), states, strict=False):
        _check_tensor(name, state, shape, dtype)
    _, *states = _results(module, input.unsqueeze(0), tuple(state.unsqueeze(0) for state in states), None, _NOTHING)
    return _as_given(module, tuple(state.squeeze(0) for state in states))


def _check_tensor(name: str, tensor: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> None:
    fits = tensor.dtype == dtype or is_autocast(tensor.device)
    if tensor.shape != shape or not fits:
        got = f"{tuple(tensor.shape)} and {tensor.dtype}"
        raise RuntimeError(message("forward", name, f"have shape {tuple(shape)} and be {dtype}", got))


# Graph breaks for torch.compile; only used if dynamo is imported, as its import takes 1.6 s.
untraced = {run: _disable_dynamo(run) for run in (run_sequences, run_step)}


def _states(module: Any, hx: Any) -> tuple[Tensor, ...]:
    """Return the states as a tuple, which is empty for None."""
    if hx is None:
        return ()
    names = module._rnnkit_states
    states = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    if len(states) != len(names) or not all(isinstance(state, Tensor) for state in states):
        *first, last = names
        count = "two" if len(names) == 2 else len(names)
        listed = f"tuple of {count} tensors, {', '.join(first)} and {last}" if first else "tensor"
        expected = f"be None or a {listed}"
        raise TypeError(message("forward", "hx", expected, f"{type(hx).__name__} of {len(states)}"))
    return states


def _refuse_traces() -> None:
    """Raise in tracing, where the engine's results would become constants."""
    if torch.jit.is_tracing() or torch.onnx.is_in_onnx_export():
        cure = f"trace PyTorch's own module: {RESTORE}"
        raise BackendError(f"forward: call cannot be traced: {cure}")


def _as_given(module: Any, states: tuple[Tensor, ...]) -> Any:
    return states if len(module._rnnkit_states) > 1 else states[0]


def _packed_layout(packed: PackedSequence) -> tuple[Layout, np.ndarray]:
    """Return the layout of a packed sequence in a padded batch, and the lengths."""
    sizes = packed.batch_sizes.numpy()
    _check_sizes(sizes, len(packed.data))
    shape = len(sizes), int(sizes[0])
    order = np.arange(shape[1]) if packed.sorted_indices is None else packed.sorted_indices.cpu().numpy()
    if order.shape != shape[1:] or not np.array_equal(np.sort(order), np.arange(shape[1])):
        expected = f"hold each of 0..{shape[1] - 1} once"
        raise ValueError(message("forward", "input.sorted_indices", expected, order[:8].tolist()))
    steps = np.repeat(np.arange(shape[0]), sizes)
    places = np.arange(len(steps)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    lengths = np.empty(shape[1], np.int64)
    lengths[order] = np.bincount(places, minlength=shape[1])
    return Layout(shape, rows=steps * shape[1] + order[places]), lengths


def _check_sizes(sizes: np.ndarray, count: int) -> None:
    """Check the batch sizes of a packed sequence of so many rows, which may have been made by hand."""
    if not sizes.size or sizes[-1] < 1 or (np.diff(sizes) > 0).any():
        expected, got = "hold numbers above 0, none larger than the one before", sizes[:8].tolist()
        raise ValueError(message("forward", "input.batch_sizes", expected, got))
    if int(sizes.sum(dtype=np.float64)) != count:
        expected = f"add up to the {count} rows of input.data"
        raise ValueError(message("forward", "input.batch_sizes", expected, int(sizes.sum(dtype=np.float64))))


def _results(module: Any, data: Tensor, states: tuple[Any, ...], packed: Any, options: Options) -> tuple[Tensor, ...]:
    """Run a checked call: return y and the final states, then, with `all_states`, the states after each step."""
    dtype, is_half = module._rnnkit_dtype(), module._rnnkit_dtype() is torch.bfloat16 and data.is_cpu
    if is_autocast(data.device) or is_half:  # the engine computes in the parameters' dtype, or in float32
        data, *states = (tensor.to(torch.float32 if is_half else dtype) for tensor in (data, *states))
    if len(states) > 2:
        states = [states[0], concatenate_states(states[1:])]
    tensors = data, *(*states, None, None)[:2]
    run = _way(module, tensors, packed, options)
    found = run(module, module._rnnkit_dropout(), tensors, packed, options)
    y, hy, *others = (one.to(dtype) for one in found) if is_half else found
    count = len(module._rnnkit_states) - 1
    return (y, hy, *split_states(others[0], count), *others[1:]) if count > 1 else (y, hy, *others)


def _way(module: Any, tensors: tuple[Any, ...], packed: Any, options: Options) -> Any:
    """Return the function that runs a call: by the engine, by an operator that a trace can record, or by equations."""
    is_compiled, own = torch.compiler.is_dynamo_compiling(), module._rnnkit_dtype()
    if own is (torch.float16 if tensors[0].is_cpu else torch.bfloat16):
        expected = f"be torch.float32, torch.float64 or {'torch.bfloat16' if tensors[0].is_cpu else 'torch.float16'}"
        raise TypeError(message("forward", "dtype of the parameters", expected, own, OTHER_DTYPES))
    reason = fallback.of_place(module, tensors[0], packed, options)
    if reason is None and not is_compiled:
        blocks = [block.name for block in weight_layout(module._rnnkit_desc(0.0))]
        reason = fallback.transformed(*tensors, *_parameters(module, blocks))
    if reason is None and quantized.is_quantized(module):
        return _untraced_quantized if is_compiled else _quantized
    if reason is None:
        return _record if operator.is_needed() else _run
    if is_compiled:
        return _untraced_equations
    fallback.warn("forward", reason)
    return _by_equations


def _record(module: Any, dropout: float, tensors: tuple[Any, ...], packed: Any, options: Options) -> tuple[Tensor, ...]:
    """Run a call by an operator that a trace can record."""
    if packed is not None:
        expected, cure = "be a Tensor in torch.compile and torch.export", "pass a padded batch and lengths="
        raise BackendError(message("forward", "input", expected, "a PackedSequence", cure))
    if options.all_states:
        raise BackendError(message("forward", "all_states", "be False in torch.compile and torch.export", True))
    data, hx, cx = tensors
    network, swaps = module._rnnkit_network(dropout), module._rnnkit_batch_first
    network = network._replace(precision=_precision(module, data) or "")
    layout = network._replace(dropout=0.0)  # which torch.compile(dynamic=True) takes for no constant
    parameters = _as_float32(_parameters(module, operator.names(module._rnnkit_dtype(), *layout)))
    lengths, *marks = (None if one is None else torch.as_tensor(one, device="cpu") for one in options[:3])
    if swaps:
        data, *marks = (None if one is None else one.transpose(0, 1) for one in (data, *marks))
    seed = _new_seed() if any(module._rnnkit_drawn()) else None
    inputs = data, hx, cx, lengths, *marks, seed
    y, *states = operator.call(network, inputs, parameters)[: 2 + (len(module._rnnkit_states) > 1)]
    return y.transpose(0, 1) if swaps else y, *states


def _precision(module: Any, data: Tensor) -> str | None:
    """Return the precision of products that autocast, or a module of bfloat16, asks for on a CPU; None: of the dtype.

    Tensors of such a call are float32 already. Autocast leaves a cell at float32, as PyTorch's: its weights are read
    once, and rounding them would take longer.
    """
    if not data.is_cpu or data.dtype is not torch.float32:
        return None
    is_asked = is_autocast(data.device) and not isinstance(module, torch.nn.RNNCellBase)
    is_asked = is_asked and torch.get_autocast_dtype("cpu") is torch.bfloat16
    return "bfloat16" if is_asked or module._rnnkit_dtype() is torch.bfloat16 else None


def _run(module: Any, dropout: float, tensors: tuple[Any, ...], packed: Any, options: Options) -> tuple[Tensor, ...]:
    """Run the engine, with a gradient if one may be needed."""
    call = _call(module, dropout, tensors[0], packed, options)
    parameters = _parameters(module, [block.name for block in weight_layout(call.desc)])
    if module._rnnkit_samples is not None and module._rnnkit_samples.is_wanted:
        call = call._replace(hand_on=partial(_hand_on, module, parameters))
    tensors = *tensors, *_as_float32(parameters)
    keeps = call.desc.draws or options.all_states or _wants_gradient(tensors)
    return (Recurrence.apply if keeps else infer)(call, *tensors)


def _hand_on(module: Any, parameters: list[Tensor], gradients: list[Tensor]) -> None:
    """Give Opacus the gradients of single sequences."""
    module._rnnkit_samples.hand_on(module, dict(zip(parameters, gradients, strict=True)))


def _call(module: Any, dropout: float, data: Tensor, packed: Any, options: Options) -> Call:
    """Return the arguments of a call that have no gradient."""
    layout, lengths = _layout(module, data, packed, options)
    lengths = lengths.cpu().numpy() if isinstance(lengths, Tensor) else lengths
    marks = [_on_host(_marks(name, getattr(options, name), layout)) for name in ("resets", "mask")]
    desc = module._rnnkit_desc(dropout)
    seed = int(_new_seed()) if desc.draws else None
    call = Call(desc, layout, lengths, *marks, seed, all_states=options.all_states)
    return call._replace(precision=_precision(module, data))


def _quantized(
    module: Any, dropout: float, tensors: tuple[Any, ...], packed: Any, options: Options
) -> tuple[Tensor, ...]:
    """Run the engine with quantized weights."""
    if operator.is_needed():
        expected = "have no quantized weights in torch.export and make_fx"
        raise BackendError(message("forward", "module", expected, module._rnnkit_precision, quantized.FULL))
    call = _call(module, dropout, tensors[0], packed, options)
    tensors = *tensors, *_parameters(module, [block.name for block in weight_layout(call.desc)])
    cache = module.__dict__.get("_rnnkit_cache", plain.EMPTY_CACHE)
    is_valid = cache.flat is not None and plain.still_valid(cache.flat, module._parameters) is not None
    return quantized.infer(module, cache.flat if is_valid else module._rnnkit_flat(), call, tensors)


_untraced_quantized = _disable_dynamo(_quantized)


def _by_equations(
    module: Any, dropout: float, tensors: tuple[Any, ...], packed: Any, options: Options
) -> tuple[Tensor, ...]:
    """Run a call by PyTorch's operations."""
    layout, lengths = _layout(module, tensors[0], packed, options)
    desc = module._rnnkit_desc(dropout)
    marks = {"lengths": lengths} | {name: _marks(name, getattr(options, name), layout) for name in ("resets", "mask")}
    drawn = equations.draw(desc, layout.shape, tensors[0])
    tensors = *tensors, *_as_float32(_parameters(module, [block.name for block in weight_layout(desc)]))
    found = equations.results(desc, layout, marks, drawn, tensors, options.all_states)
    count = layout.num_results(desc)
    return *found[:count], *(one.detach() for one in found[count:])


_untraced_equations = _disable_dynamo(_by_equations)


def _layout(module: Any, data: Tensor, packed: Any, options: Options) -> tuple[Layout, Any]:
    """Return the layout of a call, and its lengths."""
    if packed is not None:
        return _packed_layout(packed)
    shape = tuple(data.shape[:2])
    return Layout(shape[::-1] if module._rnnkit_batch_first else shape, module._rnnkit_batch_first), options.lengths


def _parameters(module: Any, blocks: list[str]) -> list[Tensor]:
    """Return the parameters that hold the blocks of these names."""
    names = [module._rnnkit_parameter_name(block) for block in blocks]
    for name in names:
        if getattr(module, name, None) is None:  # the module's sizes have been changed
            raise TypeError(message("forward", name, f"be a parameter of {module}", "none"))
    return [getattr(module, name) for name in names]


def _as_float32(parameters: list[Tensor]) -> list[Tensor]:
    """Return the parameters, those of bfloat16 as float32: autograd rounds their gradients."""
    return [one.float() if one.dtype is torch.bfloat16 and one.is_cpu else one for one in parameters]


def _marks(name: str, given: Any, layout: Layout) -> Any:
    """Return `resets` or `mask`, an array or a tensor, as (T, N)."""
    if given is None:
        return None
    marks, order = given if isinstance(given, Tensor) else np.asarray(given), -1 if layout.order == BATCH_FIRST else 1
    if tuple(marks.shape) != layout.shape[::order]:
        dims = ("seq_len", "batch_size")[::order]
        raise wrong_shape("forward", name, layout.shape[::order], dims, tuple(marks.shape))
    return marks.swapaxes(0, 1) if layout.order == BATCH_FIRST else marks


def _on_host(marks: Any) -> np.ndarray | None:
    if not isinstance(marks, Tensor):
        return marks
    marks = marks.detach().cpu()
    return (marks.float() if marks.is_floating_point() else marks).numpy()  # NumPy has no bfloat16


def _wants_gradient(tensors: tuple[Any, ...]) -> bool:
    """Whether a gradient may be needed."""
    if not torch.is_grad_enabled():
        return False  # usually the last one, a parameter, requires it
    return tensors[-1].requires_grad or any(one is not None and one.requires_grad for one in tensors)
