"""PyTorch's `nn.RNN`, `nn.LSTM`, `nn.GRU` and their cells on the engine."""

from __future__ import annotations

import copy
import copyreg
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self

import torch
from torch import nn

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import weight_layout
from rnnkit.errors import BackendError, wrong_type
from rnnkit.torch import calls, opacus, plain
from rnnkit.torch.arrays import to_array
from rnnkit.torch.descriptor import DTYPES, ModuleConfig, descriptor
from rnnkit.torch.function import RESTORE, views
from rnnkit.torch.layout import BATCH_FIRST, ONE_STEP, STEPS_FIRST

_is_compiled = torch.compiler.is_dynamo_compiling
_CONFIGURATION = {"mode", "input_size", "hidden_size", "num_layers", "bias", "bidirectional", "proj_size"}
"""Attributes that calls read once, until they are assigned again."""
_RANDOM = {"training", "dropout"}
"""Attributes that `_rnnkit_drawn` depends on. Programs assign them often, and mostly nothing changes."""


class Accelerated(nn.Module):
    """Base class of accelerated modules: constructor, parameters and `state_dict` are PyTorch's."""

    _rnnkit_has_own_cell = False  # whether no mode names the cell
    _rnnkit_precision = None  # of inference, in evaluation mode
    _rnnkit_samples: Any = None  # `opacus.Samples`, while Opacus has hooks on the module

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with torch.inference_mode(False):  # parameters of inference mode could not be trained later
            super().__init__(*arguments, **options)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in _CONFIGURATION or name in _RANDOM:
            cache = self.__dict__.get("_rnnkit_cache", plain.EMPTY_CACHE)
            if cache.flat is not None and (name in _CONFIGURATION or cache.flat.drawn != self._rnnkit_drawn()):
                cache.flat = None

    def flatten_parameters(self) -> None:
        """Move all parameters into one flat buffer, unless they already are in one, so that calls read them in place.

        They keep their identity and values. On the CPU each has its own storage; on a GPU they are views, as for cuDNN.
        """
        flat = self.__dict__.get("_rnnkit_cache", plain.EMPTY_CACHE).flat
        if flat is not None and plain.still_valid(flat, self._parameters) is not None:
            return  # programs call this before each forward
        named: dict[str, Any] = {name: one for name, one in self._parameters.items() if one is not None}
        parameters = named.values()
        kinds = {(one.dtype, one.device) for one in parameters}
        if len(kinds) != 1 or next(iter(kinds))[0] not in DTYPES or not all(map(_may_be_moved, parameters)):
            return  # each call copies the weights
        if len({one.data_ptr() for one in parameters}) != len(parameters):
            return  # tied parameters stay tied
        desc = self._rnnkit_desc(0.0)
        shapes = {self._rnnkit_parameter_name(block.name): block.shape for block in weight_layout(desc)}
        if {name: one.shape for name, one in named.items()} != shapes:
            return
        ordered = [named[name] for name in shapes]
        if plain.are_neighbours(desc, ordered) and (ordered[0].device.type != "cpu" or _have_own_storages(ordered)):
            return
        with torch.inference_mode(False), torch.no_grad():  # these tensors may be trained later
            flat = torch.cat([one.data.reshape(-1) for one in ordered])
            for one, view in zip(ordered, views(desc, to_array(flat)), strict=True):
                one.data = view

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; a change of it drops quantized weights."""
        if mode != self.training:
            self.__dict__.get("_rnnkit_cache", plain.EMPTY_CACHE).packed = None
        return super().train(mode)

    def register_forward_hook(self, hook: Callable[..., Any], **options: Any) -> Any:  # type: ignore[override]
        """Register a forward hook, see `torch.nn.Module`."""
        return super().register_forward_hook(opacus.adapted(self, hook), **options)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Any:
        """Register a full backward hook, see `torch.nn.Module`."""
        return opacus.taken(self, hook) or super().register_full_backward_hook(hook, prepend)

    def _rnnkit_drawn(self) -> tuple[float, bool]:
        """Return the random options of a call: the dropout, and whether the cell draws noise."""
        return self._rnnkit_dropout(), False

    def _rnnkit_desc(self, dropout: float) -> RNNDescriptor:
        return descriptor(self._rnnkit_network(dropout), self._rnnkit_dtype())

    @property
    def _rnnkit_states(self) -> tuple[str, ...]:
        """Names of the states."""
        return ("h", "c") if self._rnnkit_mode == "LSTM" else ("h",)

    @staticmethod
    def _rnnkit_parameter_name(name: str) -> str:
        """Return the module's name of a parameter of the engine."""
        return name

    def _rnnkit_run(self, order: int, any_call: Callable[..., Any], input: Any, hx: Any, *options: Any) -> Any:
        """Run a call; one that is not plain, or has options, goes to `any_call` of `calls`."""
        if _is_compiled():  # dynamo traces this call
            return any_call(self, input, hx, *options)
        if torch.is_inference_mode_enabled() and torch.is_grad_enabled():  # by enable_grad: nothing has a gradient
            with torch.no_grad():
                return self._rnnkit_run(order, any_call, input, hx, *options)
        is_full = order == ONE_STEP or not torch.is_autocast_enabled("cpu")
        if is_full and not options and self._rnnkit_samples is None and not plain.is_traced_or_debugged():
            flat = self.__dict__.get("_rnnkit_cache", plain.EMPTY_CACHE).flat
            parameters = None if flat is None else plain.still_valid(flat, self._parameters)
            if parameters is None:
                flat = self._rnnkit_flat()
                parameters = None if flat is None else plain.still_valid(flat, self._parameters)
            size = None if parameters is None else plain.size_of(flat, input, order)
            states = None if size is None else plain.states_of(flat, size, hx)
            if states is not None:
                return calls.run_plain(self, flat, size, (input, *states, *parameters))
        run = calls.untraced[any_call] if "torch._dynamo" in sys.modules else any_call
        return run(self, input, hx, *options)

    def _rnnkit_flat(self) -> plain.FlatParameters | None:
        """Locate the parameters, and cache the result for later calls."""
        desc = self._rnnkit_desc(self._rnnkit_dropout())
        names = [self._rnnkit_parameter_name(block.name) for block in weight_layout(desc)]
        cache = self.__dict__.setdefault("_rnnkit_cache", plain.ParameterCache())
        cache.flat = plain.find_flat(self._rnnkit_drawn(), desc, names, self._parameters)
        return cache.flat

    def _apply(self, *arguments: Any, **options: Any) -> Any:
        result, cache = super()._apply(*arguments, **options), self.__dict__.get("_rnnkit_cache", plain.EMPTY_CACHE)
        if cache.flat is not None and plain.still_valid(cache.flat, self._parameters) is None:
            cache.flat = cache.packed = None  # drops the references to the old memory
        return result

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.flatten_parameters()  # assign=True replaces parameters

    @property
    def qconfig(self) -> Any:
        """Set by `torch.ao.quantization` on every module."""
        if "qconfig" not in self.__dict__:
            raise AttributeError("qconfig")
        return self.__dict__["qconfig"]

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        self.__dict__["qconfig"] = value
        text = f"{type(self).__name__} is not quantized because it runs on rnnkit: {RESTORE}"
        warnings.warn(text, stacklevel=2)

    @qconfig.deleter
    def qconfig(self) -> None:
        del self.__dict__["qconfig"]

    def __prepare_scriptable__(self) -> NoReturn:
        """Raise for `torch.jit.script`, which calls this first."""
        cure = f"script PyTorch's own module: {RESTORE}"
        raise BackendError(f"script: module {type(self).__name__} of rnnkit cannot be scripted; {cure}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a module created in `accelerated` as PyTorch's module, which loads without rnnkit."""
        born_as = self.__dict__.get("_born_as")
        if born_as is None:
            return super().__reduce_ex__(protocol)
        own = "_born_as", "_rnnkit_cache", "_rnnkit_precision", "_rnnkit_samples"
        state = {name: value for name, value in super().__getstate__().items() if name not in own}
        return copyreg._reconstructor, (born_as, object, None), state  # type: ignore[attr-defined]

    def __copy__(self) -> Any:
        """Copy a module; the copy runs on the engine, even if a pickle would contain PyTorch's module."""
        copied = self.__new__(type(self))
        copied.__setstate__(self.__getstate__())
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        memo[id(self)] = copied = self.__new__(type(self))
        copied.__setstate__(copy.deepcopy(super().__getstate__(), memo))
        return copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.pop("_rnnkit_cache", None)  # `copy.copy` takes that of the original
        self.flatten_parameters()


def _have_own_storages(parameters: Sequence[nn.Parameter]) -> bool:
    return all(one.untyped_storage().nbytes() == one.nbytes for one in parameters)


def _may_be_moved(one: Any) -> bool:
    """Whether a parameter may be moved: it is neither of a subclass, nor a meta tensor, nor in shared memory."""
    return type(one) is nn.Parameter and one.device.type != "meta" and not (one.is_cpu and one.is_shared())


def release(module: nn.Module) -> None:
    """Free what is cached for a module's next call, and all traces of the engine."""
    for name in ("_rnnkit_cache", "_born_as", "_rnnkit_precision", "_rnnkit_samples"):
        vars(module).pop(name, None)


class AcceleratedLayers(Accelerated, nn.RNNBase):
    """Base class of the modules over sequences.

    With `learned_initial_state` the parameters h0_l0, c0_l0 and so on, of the shapes of :func:`rnnkit.weight_layout`,
    take the place of zeros where no states are given, and in resets. They start as zeros.
    """

    learned_initial_state = False

    def __init__(self, *arguments: Any, learned_initial_state: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not isinstance(learned_initial_state, bool):
            raise wrong_type(type(self).__name__, "learned_initial_state", "a bool", learned_initial_state)
        if learned_initial_state:
            self.learned_initial_state = True
            like, names = self._flat_weights[0], dict(self.named_parameters())
            with torch.inference_mode(False):
                for name, shape, _ in weight_layout(self._rnnkit_desc(0.0)):
                    if name not in names:
                        self.register_parameter(name, nn.Parameter(like.new_zeros(shape)))
            self.flatten_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters as PyTorch does, and initial states as zeros."""
        super().reset_parameters()
        self._zero_initial_states()

    def _zero_initial_states(self) -> None:
        names = {f"{state}0" for state in self._rnnkit_states} if self.learned_initial_state else ()
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.rpartition("_l")[0] in names:
                    parameter.zero_()

    def extra_repr(self) -> str:
        """Return the arguments in the module's repr."""
        return super().extra_repr() + ", learned_initial_state=True" * self.learned_initial_state

    @property
    def _rnnkit_mode(self) -> str:
        return self.mode

    def _rnnkit_network(self, dropout: float) -> ModuleConfig:
        sizes = self.mode, self.input_size, self.hidden_size, self.num_layers, self.bidirectional
        options = self.bias, self.proj_size, dropout, self.training, self.learned_initial_state
        return ModuleConfig(*sizes, *options)

    def _rnnkit_dtype(self) -> torch.dtype:
        return self._flat_weights[0].dtype

    def _rnnkit_dropout(self) -> float:
        return self.dropout if self.training and self.num_layers > 1 else 0.0

    @property
    def _rnnkit_batch_first(self) -> bool:
        return self.batch_first

    def _rnnkit_forward_of_pytorch(self, input: Any, hx: Any) -> Any:
        return super().forward(input, hx)

    def forward(
        self,
        input: Any,
        hx: Any = None,
        lengths: Any = None,
        resets: Any = None,
        all_states: bool = False,
        mask: Any = None,
    ) -> tuple[Any, ...]:
        """Run the network, as PyTorch's module of this name does.

        Parameters
        ----------
        input : Tensor (T, N, I), (N, T, I) with batch_first, (T, I) for one sequence, or PackedSequence
            The sequences.
        hx : Tensor (L*D, N, P), for an LSTM a tuple of that and (L*D, N, H), optional
            Initial states, without N for one sequence. None is zeros, or the module's own. A cell with further states
            takes a tuple of h and each of them, in order.
        lengths : array_like (N,) of int, optional
            Length of each sequence, 0..T, in any order; None is T for all. Not with a PackedSequence.
        resets : Tensor or array_like (T, N), (N, T) with batch_first, (T,) for one sequence, optional
            Bool, integers or floats, 0 or 1: 1 sets the state of a sequence to zeros before that step. The reverse
            direction is reset between the same two steps. With a PackedSequence the shape is that of the padded batch.
        all_states : bool, optional
            Return the states after each step, too, without a gradient. Not in torch.compile and torch.export.
        mask : Tensor or array_like, as `resets`, optional
            0 skips that step of a sequence in all layers and both directions: the state stays as it is, and output
            repeats that of the step before, or the initial state. No reset may be at a step that is skipped.

        Returns
        -------
        output : Tensor (T, N, D*P), (N, T, D*P) with batch_first, (T, D*P) for one sequence, or PackedSequence
            0 beyond a sequence's length. It belongs to the caller, who may change it in place.
        hx : as the argument
            The states after each sequence's last step.
        states : Tensor (T, L*D, N, P), for an LSTM a tuple of that and (T, L*D, N, H), with `all_states`
            The states after each step, time-major even with batch_first; 0 beyond a sequence's length.

        Raises
        ------
        RuntimeError, ValueError, TypeError
            A wrong shape, dtype or kind of argument, as in PyTorch; but seq_len 0 is allowed and returns the initial
            states.
        BackendError
            The call is traced for TorchScript or ONNX: call :func:`restore` first. ``torch.compile`` and
            ``torch.export`` accept batches with `lengths`, but not a PackedSequence.

        Warns
        -----
        FallbackWarning
            The call runs on PyTorch's operations: in ``torch.vmap`` or forward mode, on a device other than a CPU or
            CUDA, or with an option that cuDNN lacks. backward warns when second derivatives are wanted.
        """
        order = BATCH_FIRST if self.batch_first else STEPS_FIRST
        if lengths is resets is mask is None and all_states is False:
            return self._rnnkit_run(order, calls.run_sequences, input, hx)
        options = calls.Options(lengths, resets, mask, all_states)
        return self._rnnkit_run(order, calls.run_sequences, input, hx, options)


class _AcceleratedCell(Accelerated, nn.RNNCellBase):
    """Base class of the cells: a network of one layer that runs one step.

    Attributes are prefixed, so that they do not clash with those of a user's subclass.
    """

    _rnnkit_batch_first = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.flatten_parameters()

    def _rnnkit_network(self, dropout: float) -> ModuleConfig:
        sizes = self._rnnkit_mode, self.input_size, self.hidden_size, 1, False
        return ModuleConfig(*sizes, self.bias, 0, dropout, self.training)

    def _rnnkit_dtype(self) -> torch.dtype:
        return self.weight_ih.dtype

    def _rnnkit_dropout(self) -> float:
        return 0.0

    @staticmethod
    def _rnnkit_parameter_name(name: str) -> str:
        return name.removesuffix("_l0")

    def _rnnkit_forward_of_pytorch(self, input: Any, hx: Any) -> Any:
        return super().forward(input, hx)

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Run one step, as PyTorch's cell of this name does.

        Parameters
        ----------
        input : Tensor (N, I), or (I,) for one sequence
            The step.
        hx : Tensor (N, H), for an LSTMCell a tuple of two, optional
            States before the step, without N for one sequence. None is zeros.

        Returns
        -------
        hx : as the argument
            The states after the step.

        Raises
        ------
        RuntimeError, ValueError, TypeError
            A wrong shape, dtype or kind of argument.
        BackendError
            As in :class:`rnnkit.torch.LSTM`.
        """
        return self._rnnkit_run(ONE_STEP, calls.run_step, input, hx)


class RNN(AcceleratedLayers, nn.RNN):
    """`torch.nn.RNN` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""


class LSTM(AcceleratedLayers, nn.LSTM):
    """`torch.nn.LSTM` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""


class GRU(AcceleratedLayers, nn.GRU):
    """`torch.nn.GRU` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""


class LSTMCell(_AcceleratedCell, nn.LSTMCell):
    """`torch.nn.LSTMCell` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""

    _rnnkit_mode = "LSTM"


class GRUCell(_AcceleratedCell, nn.GRUCell):
    """`torch.nn.GRUCell` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""

    _rnnkit_mode = "GRU"
