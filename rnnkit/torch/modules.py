"""`nn.RNN`, `nn.LSTM` and `nn.GRU` of PyTorch that run on the engine."""

from __future__ import annotations

import copy
import copyreg
import sys
import warnings
from collections import deque
from collections.abc import MutableSequence, Sequence
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import weight_layout
from rnnkit.errors import BackendError, message
from rnnkit.torch import operator, plain, small
from rnnkit.torch.descriptor import DTYPES, Network, descriptor
from rnnkit.torch.function import Call, Layout, Recurrence, are_neighbours, infer, to_array, views

_is_compiled = torch.compiler.is_dynamo_compiling
_IDLE = 4  # workspaces that a module keeps while none of its calls waits for a backward
_idle: WeakKeyDictionary[nn.Module, MutableSequence[Any]] = WeakKeyDictionary()
"""Workspaces of each module whose memory may be used again."""


class _Fused(nn.RNNBase):
    """What the three have in common: constructor, parameters and `state_dict` are PyTorch's own."""

    def flatten_parameters(self) -> None:
        """Move all parameters into one buffer, unless they are there: a call then reads them where they are.

        They keep their identity and values. On the CPU each has a storage of its own; on a GPU they are views, as cuDNN
        wants them.
        """
        parameters: list[Any] = list(self._parameters.values())
        if any(type(one) is not nn.Parameter or not _is_ours_to_move(one) for one in parameters):
            return  # the weights are gathered at each call
        kinds = {(one.dtype, one.device) for one in parameters}
        if len(kinds) != 1 or next(iter(kinds))[0] not in DTYPES:
            return
        if len({one.data_ptr() for one in parameters}) != len(parameters):
            return  # two have one memory, and go on to
        desc = self._desc(0.0)
        shapes = {block.name: block.shape for block in weight_layout(desc)}
        if {name: one.shape for name, one in self._parameters.items()} != shapes:
            return
        ordered: list[Any] = [self._parameters[name] for name in shapes]
        if are_neighbours(desc, ordered) and (ordered[0].device.type != "cpu" or _have_own_storages(ordered)):
            return
        with torch.inference_mode(False), torch.no_grad():  # what is made here may be trained later
            flat = torch.cat([one.reshape(-1) for one in ordered])
            for one, view in zip(ordered, views(desc, to_array(flat)), strict=True):
                one.data = view

    def _desc(self, dropout: float) -> RNNDescriptor:
        return descriptor(self._network(dropout), self._flat_weights[0].dtype)

    def _network(self, dropout: float) -> Network:
        sizes = self.mode, self.input_size, self.hidden_size, self.num_layers, self.bidirectional
        return Network(*sizes, self.bias, self.proj_size, dropout)

    def _apply(self, *arguments: Any, **options: Any) -> Any:
        _idle.pop(self, None)  # of the device before
        return super()._apply(*arguments, **options)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.flatten_parameters()  # assign=True puts in others

    @property
    def qconfig(self) -> Any:
        """What `torch.ao.quantization` sets for every module that it comes to."""
        if "qconfig" not in self.__dict__:
            raise AttributeError("qconfig")
        return self.__dict__["qconfig"]

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        self.__dict__["qconfig"] = value
        text = f"{type(self).__name__} is not quantized while it runs on rnnkit: call rnnkit.torch.restore first"
        warnings.warn(text, stacklevel=2)

    @qconfig.deleter
    def qconfig(self) -> None:
        del self.__dict__["qconfig"]

    def __prepare_scriptable__(self) -> NoReturn:
        """What `torch.jit.script` asks for first."""
        cure = "script PyTorch's own module: call rnnkit.torch.restore first"
        raise BackendError(message("script", "module", "be PyTorch's own", type(self).__name__, cure))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The pickle of a module created in `accelerated` contains PyTorch's module: it loads without rnnkit."""
        born_as = self.__dict__.get("_born_as")
        if born_as is None:
            return super().__reduce_ex__(protocol)
        own = {name: value for name, value in super().__getstate__().items() if name not in ("_born_as", "_place")}
        return copyreg._reconstructor, (born_as, object, None), own  # type: ignore[attr-defined]

    def __copy__(self) -> Any:
        """A copy runs on the engine, also where a pickle would contain PyTorch's module."""
        copied = self.__new__(type(self))
        copied.__setstate__(self.__getstate__())
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        memo[id(self)] = copied = self.__new__(type(self))
        copied.__setstate__(copy.deepcopy(super().__getstate__(), memo))
        return copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.flatten_parameters()

    def forward(self, input: Any, hx: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """Run the network, as PyTorch's module of this name does.

        Parameters
        ----------
        input : Tensor (T, N, I), (N, T, I) with batch_first, (T, I) of one sequence, or PackedSequence
            The sequences.
        hx : Tensor (L*D, N, P), of an LSTM a tuple of that and (L*D, N, H), optional
            Initial states; of one sequence without N. None is zeros.
        lengths : array_like (N,) of int, optional
            Length of each sequence, 0..T, in any order; None is T for all. Not with a PackedSequence: it has its own.

        Returns
        -------
        output : Tensor (T, N, D*P), (N, T, D*P) with batch_first, (T, D*P) of one sequence, or PackedSequence
            0 beyond a sequence's length. It is the caller's own: it may be changed in place.
        hx : as the argument
            The states after each sequence's last step.

        Raises
        ------
        RuntimeError, ValueError, TypeError
            As PyTorch's own: a wrong shape, dtype or kind of argument. No steps at all are right, though: the states
            stay as they are.
        BackendError
            The input is neither on a CPU nor on a CUDA device; or the call is traced for TorchScript or ONNX, or within
            ``torch.vmap``: call :func:`restore` first. ``torch.compile``, ``torch.export`` and ``torch.func.grad`` take
            batches with `lengths`, not a PackedSequence.
        """
        if _is_compiled():  # dynamo records what is called here
            return _run(self, input, hx, lengths)
        found = self.__dict__.get("_place", plain.NOWHERE).found
        if lengths is None and found is not None and plain.is_plain(found, input, hx, self.batch_first):
            parameters = [self._parameters.get(name) for name in found.names]
            if plain.are_there(found, parameters) and not (self.dropout and self.training):
                return _run_plain(self, found, input, hx, parameters)
        run = _run_untraced if "torch._dynamo" in sys.modules else _run
        return run(self, input, hx, lengths)


def _run_plain(module: _Fused, found: plain.Found, input: torch.Tensor, hx: Any, parameters: list[Any]) -> Any:
    """The results of a call that `plain.is_plain`."""
    shape, batch_first = input.shape, module.batch_first
    states = (*(hx if found.desc.has_cell else (hx,)), None)[:2] if hx is not None else (None, None)
    tensors = input, *states, *parameters
    wants_gradient = _wants_gradient(tensors)
    size = small.size_of(found, input, batch_first) if wants_gradient else None
    if size is not None:
        output, *states = small.SmallRecurrence.apply(found, size, *tensors)
        return output, tuple(states) if found.desc.has_cell else states[0]
    layout = Layout((shape[1], shape[0]) if batch_first else (shape[0], shape[1]), batch_first)
    call = Call(found.desc, layout, None, None, _idle_of(module), found)
    output, *states = (Recurrence.apply if wants_gradient else infer)(call, *tensors)
    return output, tuple(states) if found.desc.has_cell else states[0]


def _have_own_storages(parameters: Sequence[nn.Parameter]) -> bool:
    return all(one.untyped_storage().nbytes() == one.nbytes for one in parameters)


def _is_ours_to_move(parameter: nn.Parameter) -> bool:
    """Whether it has memory, which no other process has too."""
    device = parameter.device.type
    return device != "meta" and not (device == "cpu" and parameter.is_shared())


def _run(module: _Fused, input: Any, hx: Any, lengths: Any) -> tuple[Any, Any]:
    if not isinstance(input, PackedSequence) and input.dim() == 2:
        return _run_one(module, input, hx, lengths)
    packed = input if isinstance(input, PackedSequence) else None
    data, batch_sizes = (input, None) if packed is None else (packed.data, packed.batch_sizes)
    _check_place(data)
    states = _states(module, hx)
    module.check_input(data, batch_sizes)
    if states:
        module.check_forward_args(data, _as_given(module, states), batch_sizes)
    if packed is not None and lengths is not None:
        raise ValueError(message("forward", "lengths", "be None with a PackedSequence, which has its own", "some"))
    if torch.is_autocast_enabled(data.device.type):  # the engine's numbers are the parameters'
        data, *states = (one.to(module._flat_weights[0].dtype) for one in (data, *states))
    run = _record if operator.is_wanted() else _call
    output, *states = run(module, data, (*states, None, None)[:2], packed, lengths)
    if packed is not None:
        output = PackedSequence(output, batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    return output, _as_given(module, tuple(states))


def _run_one(module: _Fused, input: torch.Tensor, hx: Any, lengths: Any) -> tuple[Any, Any]:
    """One sequence, as a batch of one."""
    axis = 0 if module.batch_first else 1
    states = tuple(state.unsqueeze(1) for state in _states(module, hx))
    output, hx = _run(module, input.unsqueeze(axis), _as_given(module, states) if states else None, lengths)
    return output.squeeze(axis), _as_given(module, tuple(state.squeeze(1) for state in _states(module, hx)))


# What a graph of torch.compile breaks at, once its compiler is there: to import that takes 1.6 s.
_run_untraced = _disable_dynamo(_run)


def _states(module: _Fused, hx: Any) -> tuple[torch.Tensor, ...]:
    """The states, without any for None."""
    if hx is None:
        return ()
    wanted = 2 if module.mode == "LSTM" else 1
    states = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    if len(states) != wanted or not all(isinstance(state, torch.Tensor) for state in states):
        expected = "be None or a tuple of two tensors, h and c" if wanted == 2 else "be None or a tensor"
        raise TypeError(message("forward", "hx", expected, f"{type(hx).__name__} of {len(states)}"))
    return states


def _check_place(data: torch.Tensor) -> None:
    """Raise where the engine cannot come: it reads memory, and TorchScript would take its results for constants."""
    if data.device.type not in ("cpu", "cuda"):
        raise BackendError(message("forward", "input", "be on a CPU or a CUDA device", data.device))
    if torch.jit.is_tracing() or torch.onnx.is_in_onnx_export():
        cure = "trace PyTorch's own module: call rnnkit.torch.restore first"
        raise BackendError(message("forward", "call", "be run", "traced", cure))


def _as_given(module: _Fused, states: tuple[torch.Tensor, ...]) -> Any:
    return states if module.mode == "LSTM" else states[0]


def _packed_layout(packed: PackedSequence) -> tuple[Layout, np.ndarray]:
    """How the steps of a packed sequence stand in a batch, and the sequences' lengths."""
    sizes = packed.batch_sizes.numpy()
    shape = len(sizes), int(sizes[0])
    order = np.arange(shape[1]) if packed.sorted_indices is None else packed.sorted_indices.cpu().numpy()
    steps = np.repeat(np.arange(shape[0]), sizes)
    places = np.arange(len(steps)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    lengths = np.empty(shape[1], np.int64)
    lengths[order] = np.bincount(places, minlength=shape[1])
    return Layout(shape, rows=steps * shape[1] + order[places]), lengths


def _dropout(module: _Fused) -> float:
    return module.dropout if module.training and module.num_layers > 1 else 0.0


def _record(module: _Fused, data: torch.Tensor, states: tuple[Any, Any], packed: Any, lengths: Any) -> tuple:
    """The results of an operator that a trace can record, for a call that has been checked."""
    if packed is not None:
        cure = "give a padded batch and lengths="
        raise BackendError(message("forward", "input", "be a Tensor in a recorded call", "a PackedSequence", cure))
    network, swaps = module._network(_dropout(module)), module.batch_first
    names = operator.names(module._flat_weights[0].dtype, *network)
    lengths = None if lengths is None else torch.as_tensor(lengths, device="cpu")
    seed = torch.randint(2**63 - 1, (), device="cpu") if network.dropout else None
    inputs = data.transpose(0, 1) if swaps else data, *states, lengths, seed
    y, *states = operator.call(network, inputs, [getattr(module, name) for name in names])
    return y.transpose(0, 1) if swaps else y, *states


def _call(module: _Fused, data: torch.Tensor, states: tuple[Any, Any], packed: Any, lengths: Any) -> tuple:
    """The engine's results for a call that has been checked."""
    if packed is not None:
        layout, lengths = _packed_layout(packed)
    else:
        shape = tuple(data.shape[:2])
        layout = Layout(shape[::-1] if module.batch_first else shape, module.batch_first)
        lengths = lengths.cpu().numpy() if isinstance(lengths, torch.Tensor) else lengths
    desc = module._desc(_dropout(module))
    parameters = [getattr(module, block.name) for block in weight_layout(desc)]
    # From PyTorch's generator, so that torch.manual_seed decides.
    seed = int(torch.randint(2**63 - 1, (), device="cpu")) if desc.dropout else None
    _place_of(module).found = plain.find(desc, module._parameters) if not desc.dropout else None
    return _results(Call(desc, layout, lengths, seed, _idle_of(module)), (data, *states, *parameters))


def _idle_of(module: _Fused) -> MutableSequence[Any]:
    idle = _idle.get(module)
    return _idle.setdefault(module, deque(maxlen=_IDLE)) if idle is None else idle


def _place_of(module: _Fused) -> plain.Place:
    return module.__dict__.setdefault("_place", plain.Place())


def _results(call: Call, tensors: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The engine's results, with a gradient where one may be asked for."""
    return (Recurrence.apply if call.desc.dropout or _wants_gradient(tensors) else infer)(call, *tensors)


def _wants_gradient(tensors: tuple[Any, ...]) -> bool:
    """Whether a gradient may be asked for; or a forward derivative: autograd says that there is none."""
    if torch.is_grad_enabled():  # of most calls the last one, a parameter, says so
        if tensors[-1].requires_grad or any(one is not None and one.requires_grad for one in tensors):
            return True
    return forward_ad._current_level >= 0


def release(module: nn.Module) -> None:
    """Free what is kept for a module's next call, and forget that it ran on the engine."""
    _idle.pop(module, None)
    for name in ("_place", "_born_as"):
        vars(module).pop(name, None)


class RNN(_Fused, nn.RNN):
    """`torch.nn.RNN` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""


class LSTM(_Fused, nn.LSTM):
    """`torch.nn.LSTM` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""


class GRU(_Fused, nn.GRU):
    """`torch.nn.GRU` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""
