"""What LSTM, GRU, RNN and Network have in common: a descriptor, the weights, and the engine's calls as methods."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from types import ModuleType
from typing import Any, Generic, Self

import numpy as np

from rnnkit.call.workspace import Workspace
from rnnkit.common.arrays import Array, copy_of, device_context, library_of, on_host
from rnnkit.descriptor import saved
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.descriptor.views import Views, write
from rnnkit.descriptor.weights import check_weights, init_weights, num_weights
from rnnkit.errors import message, wrong_type
from rnnkit.network import engine
from rnnkit.network.classes import class_of
from rnnkit.network.plan import Plan, prepare
from rnnkit.types import Cell, Floats, Initial, Mode, Precision, States


class BaseNetwork(Generic[States]):
    """A descriptor and its flat weight buffer, with the engine's calls as methods.

    Attributes
    ----------
    arrays : dict of str to array_like
        What belongs to the network's model beside it, a readout say: ``save`` writes it, ``load`` gives it back, and
        ``copy`` copies it.  Empty at first; nothing else here looks at it.
    """

    _name: str  # of the class, as `class_of` has it
    __hash__ = None  # type: ignore[assignment]  # weights change

    def _make(self, seed: int | None, *network: Any, **options: Any) -> None:
        _check_torch_options(type(self).__name__, options)
        self._set(RNNDescriptor(*network, **options))
        self._weights = init_weights(self._desc, seed)

    def _set(self, desc: RNNDescriptor, weights: Any = None, arrays: Mapping[str, Any] | None = None) -> Self:
        self._desc, self._weights, self.arrays = desc, weights, dict(arrays or {})
        return self

    @classmethod
    def from_descriptor(cls, desc: RNNDescriptor, weights: Array | None = None, *, seed: int | None = None) -> Self:
        """Return the network of a descriptor.

        Parameters
        ----------
        desc : RNNDescriptor
            What the network is, of a mode of this class; `Network` takes any.
        weights : ndarray (num_weights,), optional
            The flat buffer, which is not copied; None draws a new one.
        seed : int, optional
            Seed of the weights that are drawn.

        Returns
        -------
        LSTM, GRU, RNN or Network
            Of this class.

        Raises
        ------
        TypeError, ValueError
            The descriptor is of another class's mode, the weights are not its weights, or both weights and a seed are
            given.
        """
        function = f"{cls.__name__}.from_descriptor"
        check_descriptor(function, desc)
        if not cls._takes(desc.mode):
            got, cure = repr(desc.mode), "Network.from_descriptor takes every mode"
            raise ValueError(message(function, "desc.mode", f"be one of {cls.__name__}", got, cure))
        if weights is None:
            weights = init_weights(desc, seed)
        elif seed is not None:
            raise ValueError(message(function, "seed", "be None where weights are given", seed))
        check_weights(function, "weights", weights, desc)
        return object.__new__(cls)._set(desc, weights)

    @classmethod
    def _takes(cls, mode: Any) -> bool:
        """Whether networks of this mode are of this class."""
        return class_of(mode) == cls._name

    def __repr__(self) -> str:
        more = f", {', '.join(self.arrays)} beside them" if self.arrays else ""
        return f"<{type(self).__name__}: {self._desc!r}, {self.num_parameters} weights{more}>"

    def __eq__(self, other: object) -> bool:
        """Whether the other one is of this class and this descriptor, with the same bits in all arrays."""
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, BaseNetwork)
        return (
            self._desc == other._desc
            and _bits(self._weights) == _bits(other._weights)
            and {name: _bits(array) for name, array in self.arrays.items()}
            == {name: _bits(array) for name, array in other.arrays.items()}
        )

    def copy(self) -> Self:
        """Copy the weights, and what stands beside them, on their device.

        Returns
        -------
        LSTM, GRU, RNN or Network
            Of the same class.
        """
        return object.__new__(type(self))._set(self._desc, copy_of(self._weights), self._copies())

    def _copies(self) -> dict[str, Any]:
        return {name: copy_of(_array(value)) for name, value in self.arrays.items()}

    def astype(self, dtype: Any) -> Self:
        """Return a network with the weights rounded to another dtype; what stands beside them is copied.

        Parameters
        ----------
        dtype : str or dtype
            As for :class:`rnnkit.RNNDescriptor`. `allow_tf32`, which goes with float32 alone, is dropped by others.

        Returns
        -------
        LSTM, GRU, RNN or Network
            Of the same class, with arrays of its own.

        Raises
        ------
        TypeError, ValueError
            There is no such dtype.
        """
        desc = replace(self._desc, dtype=dtype, allow_tf32=False)
        if desc.dtype == self._desc.dtype:
            return self.copy()
        with np.errstate(over="ignore"), device_context(self._weights):
            return object.__new__(type(self))._set(desc, self._weights.astype(desc.np_dtype), self._copies())

    def to(self, library: ModuleType) -> Self:
        """Return the network with the weights on the host or on the GPU; what stands beside them comes along.

        Parameters
        ----------
        library : module
            ``numpy`` or ``cupy``; CuPy's current device.

        Returns
        -------
        LSTM, GRU, RNN or Network
            Of the same class. Arrays that are there already are not copied but shared.

        Raises
        ------
        TypeError
            `library` is neither.
        """
        if library is np:
            move: Any = on_host
        elif library is not None and library is sys.modules.get("cupy"):
            move = library.asarray
        else:
            raise wrong_type(f"{type(self).__name__}.to", "library", "the module numpy or cupy", library)
        extra = {name: _array(value) for name, value in self.arrays.items()}
        arrays = {name: move(array) if _fits_gpu(array) else array for name, array in extra.items()}
        return object.__new__(type(self))._set(self._desc, move(self._weights), arrays)

    @property
    def desc(self) -> RNNDescriptor:
        """What the network is."""
        return self._desc

    @property
    def mode(self) -> Mode | Cell:
        """The mode's name, or the cell with its parameters."""
        return self._desc.mode

    @property
    def input_size(self) -> int:
        """I, the number of features of x."""
        return self._desc.input_size

    @property
    def hidden_size(self) -> int:
        """H, the number of units of each layer and direction."""
        return self._desc.hidden_size

    @property
    def output_size(self) -> int:
        """P, the size of one direction's output: H, or proj_size with a projection."""
        return self._desc.output_size

    @property
    def num_layers(self) -> int:
        """L."""
        return self._desc.num_layers

    @property
    def num_directions(self) -> int:
        """D, 1 or 2."""
        return self._desc.num_directions

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the weights, and of all that goes in and out."""
        return self._desc.np_dtype

    @property
    def num_parameters(self) -> int:
        """The number of weights."""
        return num_weights(self._desc)

    @property
    def weights(self) -> Floats:
        """The flat buffer (num_weights,) itself, the same one always: an array that is assigned is copied into it."""
        return self._weights

    @weights.setter
    def weights(self, w: Array) -> None:
        check_weights(type(self).__name__, "weights", w, self._desc)
        write(type(self).__name__, "weights", w, self._weights)

    @property
    def views(self) -> Views:
        """The named blocks, a mapping of names to views of the weights: ``net.views[name] = array`` writes these."""
        return Views(type(self).__name__, self._desc, self._weights)

    def forward(
        self, x: Array, hx: Array | None = None, cx: Any = None, *, lengths: Any = None, inputs: Any = None,
        resets: Any = None, initial: Initial = "zeros", seed: int | None = None, first_row: int = 0,
        workspace: Workspace | None = None, checkpoint_steps: int | None = None,
    ) -> engine.Forward[States]:
        """Run the network and keep what backward needs, as :func:`rnnkit.forward` does.

        Parameters
        ----------
        x : ndarray (T, N, I)
            Input, time-major. Kept by reference: do not change it before backward.
        hx : ndarray (L*D, N, P), optional
            Initial hidden state; None is zeros.
        cx : ndarray (L*D, N, H), optional
            Initial cell state, LSTM only; None is zeros. Of a cell with several states a tuple.
        lengths : array_like (N,) of int, optional
            Length of each sequence, 0..T; None is T for all.
        inputs : mapping of str to ndarray, optional
            Side inputs of a cell that declares some.
        resets : array_like (T, N) of 0 and 1, optional
        initial : {"zeros", "hx"}, optional
            Before which steps states are reset, and to what.
        seed, first_row : int, optional
            Of what is drawn, dropout say: the seed, None for a new one, and of a part of a batch where it begins there.
        workspace : Workspace, optional
            One of an earlier call, whose memory is used again: what views it, that call's y included, is then void.
        checkpoint_steps : int, optional
            Keep the states of one step in so many alone, and let backward compute the rest again.

        Returns
        -------
        Forward
            y (read-only: a view of the workspace, or a copy in a small call; with `checkpoint_steps` a new array), hy,
            cy and the workspace.
        """
        return engine.forward(
            self._desc, self._weights, x, hx, cx, lengths=lengths, inputs=inputs, resets=resets, initial=initial,
            seed=seed, first_row=first_row, workspace=workspace, checkpoint_steps=checkpoint_steps,
        )

    def backward(
        self, workspace: Workspace, dy: Array | None = None, dhy: Array | None = None, dcy: Any = None, *,
        dw: Array | None = None,
    ) -> engine.Backward[States]:
        """Return every gradient of a forward call, as :func:`rnnkit.backward` does.

        Parameters
        ----------
        workspace : Workspace
            What that forward call left; the weights must not have changed since.
        dy : ndarray (T, N, D*P), optional
            Gradient of y; None is zeros.
        dhy : ndarray (L*D, N, P), optional
            Gradient of hy; None is zeros.
        dcy : ndarray (L*D, N, H), optional
            Gradient of cy, LSTM only; None is zeros.
        dw : ndarray (num_weights,), optional
            Buffer into which the weight gradient is added; None is a new one.

        Returns
        -------
        Backward
            dx, dhx, dcx and dw.

        Raises
        ------
        WorkspaceError
            The workspace's memory has been used by a later forward, or it is of another descriptor.
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value.
        """
        return engine.backward(self._desc, self._weights, workspace, dy, dhy, dcy, dw=dw)

    def infer(
        self, x: Array, hx: Array | None = None, cx: Any = None, *, lengths: Any = None, inputs: Any = None,
        resets: Any = None, initial: Initial = "zeros",
    ) -> engine.Infer[States]:
        """Run the network without dropout and keep nothing, as :func:`rnnkit.infer` does.

        Parameters
        ----------
        x, hx, cx, lengths, inputs, resets, initial
            As in :meth:`forward`.

        Returns
        -------
        Infer
            y, hy and cy.
        """
        own = self._desc, self._weights, x, hx, cx
        return engine.infer(*own, lengths=lengths, inputs=inputs, resets=resets, initial=initial)

    def prepare(self, *, precision: Precision | None = None) -> Plan[States]:
        """Return a plan with a packed copy of the weights, as :func:`rnnkit.prepare` does.

        Parameters
        ----------
        precision : {"bfloat16", "int8"}, optional
            What the packed weights are rounded to, as there.

        Returns
        -------
        Plan
            For many calls of ``infer`` or ``step``; later changes of the weights do not reach it.
        """
        return prepare(self._desc, self._weights, precision=precision)

    def save(self, path: str | PathLike[str], **arrays: Any) -> None:
        """Write the whole model to a file that :func:`rnnkit.load` reads: the network, and what stands beside it.

        The file is written beside its place under another name and then renamed: nobody ever sees half of one, and
        a failure leaves what was there before.

        Parameters
        ----------
        path : str or path-like
            Name of the file, taken as it is: no suffix is added.  An existing file is replaced and its mode kept; of a
            symbolic link the file that it points to.
        **arrays : array_like
            What to write beside the network, a readout say, by name, and in front of what :attr:`arrays` has: numbers,
            booleans or text.  ``load`` gives them back as the network's ``arrays``.

        Raises
        ------
        OSError
            The file cannot be written.
        TypeError
            An array is of a dtype that the file does not take: objects, dates, structures; or its name is no text.
        ValueError
            `path` names something that is no regular file: a folder, a device, a FIFO; or an array has the name of a
            part of the network, or one that no file can have: with a NUL or a lone surrogate, or of more than 65,531
            bytes in UTF-8; or ``load`` would refuse the file, as one of too many names.

        Notes
        -----
        The format is NumPy's .npz, uncompressed, with the members ``format`` (an integer), ``descriptor`` (JSON text),
        ``weights`` and one for each array.  What a killed process leaves, a file ``.rnnkit-*.tmp`` in that folder, the
        next save into the folder removes; any number of processes may save at once, and the last one's file stays.
        """
        saved.write(path, self._desc, self._weights, self.arrays | arrays)


def _check_torch_options(name: str, options: dict[str, Any]) -> None:
    """Take out what other libraries' constructors have and ours do not need; refuse what would mean another thing."""
    batch_first = options.pop("batch_first", False)
    if not isinstance(batch_first, bool):
        raise wrong_type(name, "batch_first", "a bool", batch_first)
    if batch_first:
        cure = "x is (T, N, I) here: give numpy.swapaxes(x, 0, 1)"
        raise ValueError(message(name, "batch_first", "be False", batch_first, cure))
    if "nonlinearity" in options:
        raise TypeError(message(name, "nonlinearity", "be left out", repr(options["nonlinearity"]), "only RNN has one"))


def _array(value: Any) -> Array:
    """What stands beside a network as an array: a list of names, say."""
    return value if library_of(value) is not None else np.asarray(value)


def _fits_gpu(array: Any) -> bool:
    """Whether an array can be on a GPU: text cannot."""
    return library_of(array) is not np or array.dtype.kind in "biufc"


def _bits(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """All that an array is, wherever it is."""
    host = on_host(_array(array))
    return str(host.dtype), host.shape, host.tobytes()
