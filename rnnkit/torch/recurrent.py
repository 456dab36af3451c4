"""Networks of any cell as modules of PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rnnkit.descriptor.descriptor import HOST_DTYPES, RNNDescriptor
from rnnkit.descriptor.modes import checked
from rnnkit.descriptor.weights import pack_weights, suffix_of, weight_layout, weight_views
from rnnkit.errors import message, wrong_type
from rnnkit.network.base import BaseNetwork
from rnnkit.network.networks import network_of
from rnnkit.torch.descriptor import DTYPES, descriptor, text_of
from rnnkit.torch.modules import FusedLayers

_OPTIONS = {"dtype": HOST_DTYPES, "input_mode": ("linear",), "cell_clip": (None,), "reset_after": (True,)}


class Recurrent(FusedLayers):
    """A network of any cell, used as `torch.nn.GRU` and `torch.nn.LSTM` are.

    Parameters
    ----------
    cell : cell or str
        A cell of :mod:`rnnkit.cells` or your own, with its parameters or as its class where they all have defaults; or
        the name of a mode, as for :class:`rnnkit.RNNDescriptor`.
    input_size, hidden_size, num_layers : int
        I, H and L.
    bias : bool
        Whether there are both biases.
    batch_first : bool
        Whether input and output are (N, T, ...) and not (T, N, ...).
    dropout : float
        Probability in [0, 1] with which an output of a layer is dropped on its way to the next one, in training.
    bidirectional : bool
        Whether each layer also runs over the sequence in reverse (D = 2).
    proj_size : int
        P, the size to which the output is projected, where the cell has that; 0 is none.
    device : torch.device, optional
        Where the parameters are made. Networks of cells run on the CPU.
    dtype : torch.dtype, optional
        Of the parameters: float32 or float64. None is PyTorch's default.

    Attributes
    ----------
    cell : cell or str
        With its parameters.
    weight_ih_l0, weight_hh_l0, bias_ih_l0, ... : Parameter
        The blocks of :func:`rnnkit.weight_layout`, by their names and in their order; of a reverse direction with
        ``_reverse`` at the end. A cell's vectors are among them: ``u_l0`` (H,).

    Raises
    ------
    TypeError, ValueError
        As for :class:`rnnkit.RNNDescriptor`.

    Notes
    -----
    A cell without states beside h takes and returns h, like `nn.GRU`; with one state (h, c), like `nn.LSTM`; with
    several a tuple of h and each of them, in their order.

    Examples
    --------
    >>> from rnnkit.cells import SLSTM
    >>> module = Recurrent(SLSTM, 8, 16, num_layers=2)
    >>> module
    Recurrent(SLSTM(sigmoid_forget=False), 8, 16, num_layers=2)
    >>> output, (h, c, n, m) = module(torch.ones(20, 3, 8))
    >>> output.shape, m.shape
    (torch.Size([20, 3, 16]), torch.Size([2, 3, 16]))
    """

    def __init__(
        self, cell: Any, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *, proj_size: int = 0,
        device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)  # PyTorch's base class of nn.GRU makes parameters of its own modes alone
        for name, value in (("bias", bias), ("batch_first", batch_first)):
            if not isinstance(value, bool):
                raise wrong_type("Recurrent", name, "a bool", value)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        own = checked("Recurrent", cell, "cell"), input_size, hidden_size, num_layers, bidirectional
        options = {"bias": bias, "dropout": dropout, "proj_size": proj_size, "dtype": DTYPES.get(dtype, "float32")}
        desc = RNNDescriptor(*own, **options)  # type: ignore[arg-type]
        if desc.dropout and desc.num_layers == 1:
            warnings.warn(f"Recurrent: dropout={desc.dropout} has nothing to act on in one layer", stacklevel=2)
        self.cell = desc.mode
        self.input_size, self.hidden_size, self.num_layers = desc.input_size, desc.hidden_size, desc.num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, desc.dropout
        self.bidirectional, self.proj_size = desc.bidirectional, desc.proj_size or 0
        self.mode = text_of(self.cell)
        self._names_of_states, self._draws_noise = ("h", *desc.states), desc.draws_noise
        self._names_of_inputs = tuple(one.name for one in desc.cell.declaration.inputs)
        vectors = desc.cell.declaration.vectors
        self._ranges = {vector.name: (vector.low, vector.high) for vector in vectors}
        layout = weight_layout(desc)
        for name, shape, _ in layout:
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self._flat_weights_names = [block.name for block in layout]
        suffixes = [suffix_of(layer, way) for layer in range(desc.num_layers) for way in range(desc.num_directions)]
        self._all_weights = [[name for name in self._flat_weights_names if name.endswith(end)] for end in suffixes]
        self._init_flat_weights()
        self.reset_parameters()

    @property
    def _rnnkit_states(self) -> tuple[str, ...]:
        return self._names_of_states

    def _rnnkit_drawn(self) -> tuple[float, bool]:
        return self._rnnkit_dropout(), self.training and self._draws_noise

    @property
    def _rnnkit_runs_on_cpu(self) -> bool:  # type: ignore[override]
        return not isinstance(self.cell, str)

    def reset_parameters(self) -> None:
        """Draw all parameters, uniform in [-1/sqrt(H), 1/sqrt(H)] or in the range that the cell declares for a vector.

        The numbers are those of PyTorch's generator: `torch.manual_seed` decides.
        """
        bound = 1 / sqrt(self.hidden_size)
        for name, parameter in self.named_parameters():
            low, high = self._ranges.get(name.rpartition("_l")[0], (None, None))
            nn.init.uniform_(parameter, -bound if low is None else low, bound if high is None else high)

    def forward(
        self, input: Any, hx: Any = None, lengths: Any = None, resets: Any = None, all_states: bool = False,
        inputs: Any = None,
    ) -> tuple[Any, ...]:
        """Run the network, as :class:`rnnkit.torch.GRU` does.

        Parameters
        ----------
        input, hx, lengths, resets, all_states
            As there.
        inputs : mapping of str to Tensor, optional
            Side inputs of a cell that declares some: (T, N, H) or (T, N, 1), where input is (T, N, I), else with the
            axes of input, or (N, H) for all steps; with a PackedSequence each is one of (..., H) or (..., 1).

        Returns
        -------
        output, hx, states
            As there.

        Raises
        ------
        RuntimeError, ValueError, TypeError, BackendError
            As there; or side inputs are missing, unknown, or of another shape.
        """
        return super().forward(self._with_inputs(input, inputs), hx, lengths, resets, all_states)

    def _with_inputs(self, input: Any, inputs: Any) -> Any:
        """The input with the side inputs behind it in each row."""
        names = self._names_of_inputs
        if not names and inputs is None:
            return input
        if not isinstance(inputs, Mapping) or set(inputs) != set(names):
            got = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
            expected = f"be a mapping of {', '.join(names)} to tensors" if names else "be None, the cell declares none"
            raise TypeError(message("forward", "inputs", expected, got))
        packed = isinstance(input, PackedSequence)
        data = input.data if packed else input
        beside = [self._spread(name, inputs[name], data, packed) for name in names]
        wide = torch.cat([data, *beside], -1)
        return input._replace(data=wide) if packed else wide

    def _spread(self, name: str, value: Any, data: Tensor, packed: bool) -> Tensor:
        """A side input, one number for each unit of each row of `data`."""
        value = value.data if packed and isinstance(value, PackedSequence) else value
        rows, size = data.shape[:-1], self.hidden_size
        shapes = {(*rows, size), (*rows, 1)}
        if data.dim() == 3:
            time = 1 if self.batch_first else 0
            of_rows = (rows[1 - time], size)
            if isinstance(value, Tensor) and tuple(value.shape) == of_rows:
                value = value.unsqueeze(time)
                shapes.add(tuple(value.shape))
        if not isinstance(value, Tensor) or tuple(value.shape) not in shapes or value.dtype != data.dtype:
            got = f"{tuple(value.shape)} and {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
            expected = f"have shape {' or '.join(map(str, sorted(shapes)))} and be {data.dtype}"
            raise TypeError(message("forward", f'inputs["{name}"]', expected, got))
        return value.expand(*rows, size)

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raise where the input has another number of axes or columns, or another dtype than the parameters."""
        beside = len(self._names_of_inputs) * self.hidden_size
        super().check_input(input[..., : input.shape[-1] - beside] if beside else input, batch_sizes)

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        """Raise where the states have other shapes than the input asks for, or another dtype than the parameters."""
        if isinstance(hidden, Tensor):
            super().check_forward_args(input, hidden, batch_sizes)
            return
        hidden_shape, dtype = self.get_expected_hidden_size(input, batch_sizes), self._rnnkit_dtype()
        for index, state in enumerate(hidden):
            if state.dtype != dtype and not torch.is_autocast_enabled(state.device.type):
                raise TypeError(message("forward", f"hx[{index}]", f"be {dtype} as the parameters are", state.dtype))
            shape = (*hidden_shape[:2], self.hidden_size) if index else hidden_shape
            self.check_hidden_size(state, shape, f"Expected hidden[{index}] size {{}}, got {{}}")

    def extra_repr(self) -> str:
        """What stands between the parentheses of the module's text."""
        return f"{self.cell!r}, {super().extra_repr()}"

    def network(self) -> Any:
        """Return the network with copies of the weights.

        Returns
        -------
        LSTM, GRU, RNN or Network
            For NumPy arrays, or to be saved: ``module.network().save(path)``. It is time-major, whatever batch_first.

        Raises
        ------
        TypeError
            The parameters are neither float32 nor float64.
        """
        if DTYPES.get(self._rnnkit_dtype()) not in HOST_DTYPES:
            expected = f"be {' or '.join(HOST_DTYPES)}"
            got = self._rnnkit_dtype()
            raise TypeError(message("network", "dtype of the parameters", expected, got, "convert it with .float()"))
        trained = self._rnnkit_network(self.dropout)._replace(training=True)
        desc = replace(descriptor(trained, self._rnnkit_dtype()), mode=self.cell)
        named = {name: getattr(self, name).detach().cpu().numpy() for name in self._flat_weights_names}
        return network_of(desc, pack_weights(desc, named))

    @classmethod
    def from_network(cls, net: Any, *, batch_first: bool = False) -> Self:
        """Return the module of a network, with copies of its weights.

        Parameters
        ----------
        net : LSTM, GRU, RNN or Network
            Of float32 or float64, without cell_clip and input_mode="skip", and of a GRU with reset_after.
        batch_first : bool
            Of the module.

        Returns
        -------
        Recurrent
            If the network has one bias, the other is zeros.

        Raises
        ------
        TypeError, ValueError
            `net` is no network, or has an option that the module does not have.

        Examples
        --------
        >>> import rnnkit
        >>> from rnnkit.cells import MinGRU
        >>> module = Recurrent.from_network(rnnkit.Network(MinGRU, 3, 2, seed=0))
        >>> module.network() == rnnkit.Network(MinGRU, 3, 2, seed=0)
        True
        """
        if not isinstance(net, BaseNetwork):
            raise wrong_type("from_network", "net", "an rnnkit.Network, LSTM, GRU or RNN", net)
        desc = net.desc
        for option, allowed in _OPTIONS.items():
            if getattr(desc, option) not in allowed:
                expected = f"be {' or '.join(map(str, allowed))}"
                raise ValueError(message("from_network", f"net.desc.{option}", expected, getattr(desc, option)))
        sizes = desc.mode, desc.input_size, desc.hidden_size, desc.num_layers, desc.bias != "none", batch_first
        options = {"proj_size": desc.proj_size or 0, "dtype": getattr(torch, desc.dtype)}
        module = cls(*sizes, desc.dropout, desc.bidirectional, **options, device="meta")
        module.to_empty(device="cpu")
        given = weight_views(desc, net.to(np).weights)
        with torch.no_grad():
            for name in module._flat_weights_names:
                one = getattr(module, name)
                one.copy_(torch.from_numpy(given[name].copy())) if name in given else one.zero_()
        return module

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"mode": text_of(state["cell"])})  # which may be another process's
