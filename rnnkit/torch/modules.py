"""`nn.RNN`, `nn.LSTM`, `nn.GRU` and their cells, of PyTorch, that run on the engine."""

from __future__ import annotations

import copy
import copyreg
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import weight_layout
from rnnkit.errors import BackendError, message
from rnnkit.torch import calls, plain
from rnnkit.torch.arrays import to_array
from rnnkit.torch.descriptor import DTYPES, Network, descriptor
from rnnkit.torch.function import RESTORE, views
from rnnkit.torch.layout import BATCH_FIRST, ONE_STEP, STEPS_FIRST

_is_compiled = torch.compiler.is_dynamo_compiling


class Fused(nn.Module):
    """What all have in common: constructor, parameters and `state_dict` are PyTorch's own."""

    _rnnkit_runs_on_cpu = False  # alone

    def flatten_parameters(self) -> None:
        """Move all parameters into one buffer, unless they are there: a call then reads them where they are.

        They keep their identity and values. On the CPU each has a storage of its own; on a GPU they are views, as cuDNN
        wants them.
        """
        found = self.__dict__.get("_place", plain.NOWHERE).found
        if found is not None and plain.are_there(found, self._parameters) is not None:
            return  # programs call this before each forward
        named: dict[str, Any] = {name: one for name, one in self._parameters.items() if one is not None}
        parameters = named.values()
        if any(type(one) is not nn.Parameter or not _is_ours_to_move(one) for one in parameters):
            return  # the weights are gathered at each call
        kinds = {(one.dtype, one.device) for one in parameters}
        if len(kinds) != 1 or next(iter(kinds))[0] not in DTYPES:
            return
        if len({one.data_ptr() for one in parameters}) != len(parameters):
            return  # two have one memory, and go on to
        desc = self._rnnkit_desc(0.0)
        shapes = {self._rnnkit_own_name(block.name): block.shape for block in weight_layout(desc)}
        if {name: one.shape for name, one in named.items()} != shapes:
            return
        ordered = [named[name] for name in shapes]
        if plain.are_neighbours(desc, ordered) and (ordered[0].device.type != "cpu" or _have_own_storages(ordered)):
            return
        with torch.inference_mode(False), torch.no_grad():  # what is made here may be trained later
            flat = torch.cat([one.reshape(-1) for one in ordered])
            for one, view in zip(ordered, views(desc, to_array(flat)), strict=True):
                one.data = view

    def _rnnkit_drawn(self) -> tuple[float, bool]:
        """What a call draws: the probability of dropout, and whether there are noises of its cell."""
        return self._rnnkit_dropout(), False

    def _rnnkit_desc(self, dropout: float) -> RNNDescriptor:
        return descriptor(self._rnnkit_network(dropout), self._rnnkit_dtype())

    @property
    def _rnnkit_states(self) -> tuple[str, ...]:
        """Names of the states."""
        return ("h", "c") if self._rnnkit_mode == "LSTM" else ("h",)

    @staticmethod
    def _rnnkit_own_name(name: str) -> str:
        """The module's name of a parameter that the engine has by this one."""
        return name

    def _rnnkit_run(self, order: int, any_call: Callable[..., Any], input: Any, hx: Any, *options: Any) -> Any:
        """The results of a call; one that is not plain, or has options, goes to `any_call` of `calls`."""
        if _is_compiled():  # dynamo records what is called here
            return any_call(self, input, hx, *options)
        if not options and not plain.is_watched():
            found = self.__dict__.get("_place", plain.NOWHERE).found
            is_same = found is not None and found.mode == self._rnnkit_mode and found.drawn == self._rnnkit_drawn()
            parameters = plain.are_there(found, self._parameters) if is_same else None
            if parameters is None:
                found = self._rnnkit_found()
                parameters = None if found is None else plain.are_there(found, self._parameters)
            size = None if parameters is None else plain.size_of(found, input, order)
            states = None if size is None else plain.states_of(found, size, hx)
            if states is not None:
                return calls.run_plain(self, found, size, (input, *states, *parameters))
        run = calls.untraced[any_call] if "torch._dynamo" in sys.modules else any_call
        return run(self, input, hx, *options)

    def _rnnkit_found(self) -> plain.Found | None:
        """Where the parameters are now; calls to come look there."""
        desc = self._rnnkit_desc(self._rnnkit_dropout())
        names = [self._rnnkit_own_name(block.name) for block in weight_layout(desc)]
        place = self.__dict__.setdefault("_place", plain.Place())
        place.found = plain.find(self._rnnkit_mode, self._rnnkit_drawn(), desc, names, self._parameters)
        return place.found

    def _apply(self, *arguments: Any, **options: Any) -> Any:
        calls.idle.pop(self, None)  # of the device before
        result, place = super()._apply(*arguments, **options), self.__dict__.get("_place", plain.NOWHERE)
        if place.found is not None and plain.are_there(place.found, self._parameters) is None:
            place.found = None  # with the memory where they were
        return result

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
        text = f"{type(self).__name__} is not quantized while it runs on rnnkit: {RESTORE}"
        warnings.warn(text, stacklevel=2)

    @qconfig.deleter
    def qconfig(self) -> None:
        del self.__dict__["qconfig"]

    def __prepare_scriptable__(self) -> NoReturn:
        """What `torch.jit.script` asks for first."""
        cure = f"script PyTorch's own module: {RESTORE}"
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


def _have_own_storages(parameters: Sequence[nn.Parameter]) -> bool:
    return all(one.untyped_storage().nbytes() == one.nbytes for one in parameters)


def _is_ours_to_move(parameter: nn.Parameter) -> bool:
    """Whether it has memory, which no other process has too."""
    device = parameter.device.type
    return device != "meta" and not (device == "cpu" and parameter.is_shared())


def release(module: nn.Module) -> None:
    """Free what is kept for a module's next call, and forget that it ran on the engine."""
    calls.idle.pop(module, None)
    for name in ("_place", "_born_as"):
        vars(module).pop(name, None)


class FusedLayers(Fused, nn.RNNBase):
    """What the modules over sequences have in common."""

    @property
    def _rnnkit_mode(self) -> str:
        return self.mode

    def _rnnkit_network(self, dropout: float) -> Network:
        sizes = self.mode, self.input_size, self.hidden_size, self.num_layers, self.bidirectional
        return Network(*sizes, self.bias, self.proj_size, dropout, self.training)

    def _rnnkit_dtype(self) -> torch.dtype:
        return self._flat_weights[0].dtype

    def _rnnkit_dropout(self) -> float:
        return self.dropout if self.training and self.num_layers > 1 else 0.0

    @property
    def _rnnkit_batch_first(self) -> bool:
        return self.batch_first

    def forward(
        self, input: Any, hx: Any = None, lengths: Any = None, resets: Any = None, all_states: bool = False
    ) -> tuple[Any, ...]:
        """Run the network, as PyTorch's module of this name does.

        Parameters
        ----------
        input : Tensor (T, N, I), (N, T, I) with batch_first, (T, I) of one sequence, or PackedSequence
            The sequences.
        hx : Tensor (L*D, N, P), of an LSTM a tuple of that and (L*D, N, H), optional
            Initial states; of one sequence without N. None is zeros. A cell with states beside h takes a tuple of h
            and each of them, in their order.
        lengths : array_like (N,) of int, optional
            Length of each sequence, 0..T, in any order; None is T for all. Not with a PackedSequence: it has its own.
        resets : Tensor or array_like (T, N), (N, T) with batch_first, (T,) of one sequence, optional
            Bool, integers or floats that are 0 or 1: where it is 1 the state of a sequence is zeros before that step.
            The reverse direction is reset between the same two steps. With a PackedSequence the shape is that of the
            padded batch.
        all_states : bool, optional
            Return the states after each step, too. No gradient flows through them. Not in calls that are recorded.

        Returns
        -------
        output : Tensor (T, N, D*P), (N, T, D*P) with batch_first, (T, D*P) of one sequence, or PackedSequence
            0 beyond a sequence's length. It is the caller's own: it may be changed in place.
        hx : as the argument
            The states after each sequence's last step.
        states : Tensor (T, L*D, N, P), of an LSTM a tuple of that and (T, L*D, N, H), with `all_states`
            The states after each step, also with batch_first; 0 beyond a sequence's length.

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
        order = BATCH_FIRST if self.batch_first else STEPS_FIRST
        if lengths is resets is None and all_states is False:
            return self._rnnkit_run(order, calls.run_sequences, input, hx)
        return self._rnnkit_run(order, calls.run_sequences, input, hx, calls.Options(lengths, resets, all_states))


class _FusedCell(Fused, nn.RNNCellBase):
    """What the cells have in common: each is a network of one layer, which runs one step.

    All names are prefixed: a user's subclass may have others, which PyTorch's cells do not.
    """

    _rnnkit_batch_first = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.flatten_parameters()

    def _rnnkit_network(self, dropout: float) -> Network:
        sizes = self._rnnkit_mode, self.input_size, self.hidden_size, 1, False
        return Network(*sizes, self.bias, 0, dropout, self.training)

    def _rnnkit_dtype(self) -> torch.dtype:
        return self.weight_ih.dtype

    def _rnnkit_dropout(self) -> float:
        return 0.0

    @staticmethod
    def _rnnkit_own_name(name: str) -> str:
        return name.removesuffix("_l0")

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Run one step, as PyTorch's cell of this name does.

        Parameters
        ----------
        input : Tensor (N, I), or (I,) of one sequence
            The step.
        hx : Tensor (N, H), of an LSTMCell a tuple of two, optional
            States before the step; of one sequence without N. None is zeros.

        Returns
        -------
        hx : as the argument
            The states after the step.

        Raises
        ------
        RuntimeError, ValueError, TypeError
            A wrong shape, dtype or kind of argument.
        BackendError
            As of :class:`rnnkit.torch.LSTM`.
        """
        return self._rnnkit_run(ONE_STEP, calls.run_step, input, hx)


class RNN(FusedLayers, nn.RNN):
    """`torch.nn.RNN` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""


class LSTM(FusedLayers, nn.LSTM):
    """`torch.nn.LSTM` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""


class GRU(FusedLayers, nn.GRU):
    """`torch.nn.GRU` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""


class LSTMCell(_FusedCell, nn.LSTMCell):
    """`torch.nn.LSTMCell` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""

    _rnnkit_mode = "LSTM"


class GRUCell(_FusedCell, nn.GRUCell):
    """`torch.nn.GRUCell` on the engine: arguments, parameters and `state_dict` are those of PyTorch's."""

    _rnnkit_mode = "GRU"
