"""Base class of LSTM, GRU, RNN and Network: a descriptor, its weights, and the engine's functions as methods."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, Generic, Self

import numpy as np

from rnnkit.call.workspace import Workspace
from rnnkit.common.arrays import Array, copy_of, device_context, on_host
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.descriptor.views import Views, write
from rnnkit.descriptor.weights import check_weights, init_weights, num_weights
from rnnkit.errors import message, wrong_type
from rnnkit.network import engine
from rnnkit.network.classes import check_torch_options, class_of
from rnnkit.network.extra_arrays import as_array, bits_of, copies_of, fits_gpu
from rnnkit.network.files import NetworkFiles
from rnnkit.network.plan import Plan, prepare
from rnnkit.network.results import Backward, Forward, Infer
from rnnkit.types import CallPrecision, Cell, Floats, Initial, Mode, Precision, States


class BaseNetwork(NetworkFiles, Generic[States]):
    """A descriptor and its flat weight buffer, with the engine's functions as methods.

    Attributes
    ----------
    arrays : dict of str to array_like
        Extra arrays of the model, for example a readout layer. ``save``, ``load`` and ``copy`` include them. Empty by
        default; the network itself does not use them.
    """

    _name: str  # of the class, as `class_of` returns it
    __hash__ = None  # type: ignore[assignment]  # unhashable: the weights are mutable

    def _make(self, seed: int | None, *network: Any, **options: Any) -> None:
        check_torch_options(type(self).__name__, options)
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
            Mode, sizes and options. The mode must be one of this class; `Network` takes any mode.
        weights : ndarray (num_weights,), optional
            The flat weight buffer, used without a copy. None draws new weights.
        seed : int, optional
            Seed of the new weights.

        Returns
        -------
        LSTM, GRU, RNN or Network
            An object of this class.

        Raises
        ------
        TypeError, ValueError
            The mode belongs to another class, the weights do not fit the descriptor, or both `weights` and `seed` are
            given.
        """
        function = f"{cls.__name__}.from_descriptor"
        check_descriptor(function, desc)
        if not cls._takes(desc.mode):
            got, cure = repr(desc.mode), "Network.from_descriptor takes any mode"
            raise ValueError(message(function, "desc.mode", f"be one of {cls.__name__}", got, cure))
        if weights is None:
            weights = init_weights(desc, seed)
        elif seed is not None:
            raise ValueError(message(function, "seed", "be None if weights are given", seed))
        check_weights(function, "weights", weights, desc)
        return object.__new__(cls)._set(desc, weights)

    @classmethod
    def _takes(cls, mode: Any) -> bool:
        """Return whether this class has networks of this mode."""
        return class_of(mode) == cls._name

    def __repr__(self) -> str:
        more = f", arrays: {', '.join(self.arrays)}" if self.arrays else ""
        return f"<{type(self).__name__}: {self._desc!r}, {self.num_parameters} weights{more}>"

    def __eq__(self, other: object) -> bool:
        """Return whether the class, the descriptor and all bits of all arrays are equal."""
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, BaseNetwork)
        own, others = (bits_of({"": net._weights, **net.arrays}) for net in (self, other))
        return self._desc == other._desc and own == others

    def copy(self) -> Self:
        """Copy the weights and the extra arrays, on the same device.

        Returns
        -------
        LSTM, GRU, RNN or Network
            A network of the same class.
        """
        return object.__new__(type(self))._set(self._desc, copy_of(self._weights), copies_of(self.arrays))

    def astype(self, dtype: Any) -> Self:
        """Return a copy of the network with the weights rounded to another dtype.

        Extra arrays are copied unchanged.

        Parameters
        ----------
        dtype : str or dtype
            As for :class:`rnnkit.RNNDescriptor`. A new dtype resets `allow_tf32`, which only float32 has.

        Returns
        -------
        LSTM, GRU, RNN or Network
            A network of the same class. It shares no memory with this one.

        Raises
        ------
        TypeError, ValueError
            `dtype` is not supported.
        """
        desc = replace(self._desc, dtype=dtype, allow_tf32=False)
        if desc.dtype == self._desc.dtype:
            return self.copy()
        with np.errstate(over="ignore"), device_context(self._weights):
            return object.__new__(type(self))._set(desc, self._weights.astype(desc.np_dtype), copies_of(self.arrays))

    def to(self, library: ModuleType) -> Self:
        """Return the network with the weights and the extra arrays on the host or on a GPU.

        Parameters
        ----------
        library : module
            ``numpy`` for the host, ``cupy`` for CuPy's current GPU.

        Returns
        -------
        LSTM, GRU, RNN or Network
            A network of the same class. It shares arrays that are already on that device; text stays on the host.

        Raises
        ------
        TypeError
            `library` is neither of the two modules.
        """
        if library is np:
            move: Any = on_host
        elif library is not None and library is sys.modules.get("cupy"):
            move = library.asarray
        else:
            raise wrong_type(f"{type(self).__name__}.to", "library", "the module numpy or cupy", library)
        extra = {name: as_array(value) for name, value in self.arrays.items()}
        arrays = {name: move(array) if fits_gpu(array) else array for name, array in extra.items()}
        return object.__new__(type(self))._set(self._desc, move(self._weights), arrays)

    @property
    def desc(self) -> RNNDescriptor:
        """The descriptor: mode, sizes and options."""
        return self._desc

    @property
    def mode(self) -> Mode | Cell:
        """The name of the mode, or the cell with its parameters."""
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
        """P, the output size of one direction: H, or proj_size with a projection."""
        return self._desc.output_size

    @property
    def num_layers(self) -> int:
        """L, the number of stacked layers."""
        return self._desc.num_layers

    @property
    def num_directions(self) -> int:
        """D: 2 if bidirectional, else 1."""
        return self._desc.num_directions

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the weights, inputs and outputs."""
        return self._desc.np_dtype

    @property
    def num_parameters(self) -> int:
        """Number of weights in the flat buffer."""
        return num_weights(self._desc)

    @property
    def weights(self) -> Floats:
        """The flat weight buffer (num_weights,). Assignment copies into it: the buffer stays the same object."""
        return self._weights

    @weights.setter
    def weights(self, w: Array) -> None:
        check_weights(type(self).__name__, "weights", w, self._desc)
        write(type(self).__name__, "weights", w, self._weights)

    @property
    def views(self) -> Views:
        """Mapping of names to views of the weights. ``net.views[name] = array`` writes to the buffer."""
        return Views(type(self).__name__, self._desc, self._weights)

    def forward(
        self,
        x: Array,
        hx: Array | None = None,
        cx: Any = None,
        *,
        lengths: Any = None,
        mask: Any = None,
        inputs: Any = None,
        resets: Any = None,
        initial: Initial = "zeros",
        seed: int | None = None,
        first_row: int = 0,
        workspace: Workspace | None = None,
        checkpoint_steps: int | None = None,
        precision: CallPrecision | None = None,
    ) -> Forward[States]:
        """Run the network over a batch of sequences and save what backward needs, see :func:`rnnkit.forward`.

        Parameters
        ----------
        x : ndarray (T, N, I)
            Input, time first. The workspace keeps a reference: do not change x before backward.
        hx : ndarray (L*D, N, P), optional
            Initial hidden state. None: zeros.
        cx : ndarray (L*D, N, H), optional
            Initial cell state, of an LSTM or a cell with states. None: zeros. A tuple of arrays for several states.
        lengths, mask, inputs, resets, initial : optional
            Lengths of the sequences, steps to skip, side inputs and resets, as for :func:`rnnkit.forward`.
        seed, first_row : int, optional
            Seed of dropout and noise (None: random), and the index of the first sequence in a larger batch.
        workspace : Workspace, optional
            The workspace of an earlier call, to reuse its memory. That call's workspace and y become invalid.
        checkpoint_steps : int, optional
            Gradient checkpointing: save the states of every K-th step only, and recompute the rest in backward.
        precision : {"bfloat16"}, optional
            Round what the products multiply to bfloat16, here and in backward. None: full precision.

        Returns
        -------
        Forward
            y, hy, cy and the workspace. y is read-only.
        """
        return engine.forward(
            self._desc,
            self._weights,
            x,
            hx,
            cx,
            lengths=lengths,
            mask=mask,
            inputs=inputs,
            resets=resets,
            initial=initial,
            seed=seed,
            first_row=first_row,
            workspace=workspace,
            checkpoint_steps=checkpoint_steps,
            precision=precision,
        )

    def backward(
        self,
        workspace: Workspace,
        dy: Array | None = None,
        dhy: Array | None = None,
        dcy: Any = None,
        *,
        dw: Array | None = None,
        per_sequence: bool = False,
        rows: Any = None,
    ) -> Backward[States]:
        """Compute all gradients of a forward call, see :func:`rnnkit.backward`.

        Parameters
        ----------
        workspace : Workspace
            The workspace of the forward call. The weights must not have changed since.
        dy : ndarray (T, N, D*P), optional
            Gradient of y. None: zeros.
        dhy : ndarray (L*D, N, P), optional
            Gradient of hy. None: zeros.
        dcy : ndarray (L*D, N, H), optional
            Gradient of cy, of an LSTM or a cell with states. None: zeros.
        dw : ndarray (num_weights,), optional
            Buffer to which the weight gradient is added. None: a new array.
        per_sequence : bool, optional
            Whether dw is that of each sequence, (N, num_weights).
        rows : slice or sequence of int, optional
            With `per_sequence`, the sequences that are wanted. None: all.

        Returns
        -------
        Backward
            dx, dhx, dcx and dw.

        Raises
        ------
        WorkspaceError
            A later forward has reused the memory of the workspace, or it belongs to another descriptor.
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value.
        """
        given = workspace, dy, dhy, dcy
        return engine.backward(self._desc, self._weights, *given, dw=dw, per_sequence=per_sequence, rows=rows)

    def infer(
        self,
        x: Array,
        hx: Array | None = None,
        cx: Any = None,
        *,
        lengths: Any = None,
        mask: Any = None,
        inputs: Any = None,
        resets: Any = None,
        initial: Initial = "zeros",
        precision: CallPrecision | None = None,
    ) -> Infer[States]:
        """Run the network without dropout and without saving anything for backward, see :func:`rnnkit.infer`.

        Parameters
        ----------
        x, hx, cx, lengths, mask, inputs, resets, initial, precision
            As in :meth:`forward`.

        Returns
        -------
        Infer
            y, hy and cy.
        """
        arrays, marks = (self._desc, self._weights, x, hx, cx), {"lengths": lengths, "mask": mask, "resets": resets}
        return engine.infer(*arrays, **marks, inputs=inputs, initial=initial, precision=precision)

    def prepare(self, *, precision: Precision | None = None) -> Plan[States]:
        """Return a plan with a packed copy of the weights, see :func:`rnnkit.prepare`.

        Parameters
        ----------
        precision : {"bfloat16", "bfloat16-native", "int8"}, optional
            Quantize the packed weights. None: full precision.

        Returns
        -------
        Plan
            A plan for many calls of ``infer`` or ``step``. Later changes of the weights do not affect it.
        """
        return prepare(self._desc, self._weights, precision=precision)
