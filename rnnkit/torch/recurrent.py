"""PyTorch modules of any cell."""

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
from rnnkit.descriptor.modes import checked, text_of_mode
from rnnkit.descriptor.weights import pack_weights, suffix_of, weight_layout, weight_views
from rnnkit.errors import message, wrong_type
from rnnkit.network.base import BaseNetwork
from rnnkit.network.networks import network_of
from rnnkit.torch import calls
from rnnkit.torch.arrays import is_autocast
from rnnkit.torch.descriptor import DTYPES, descriptor, mode_text
from rnnkit.torch.modules import AcceleratedLayers

_OPTIONS = {"dtype": HOST_DTYPES, "input_mode": ("linear",), "cell_clip": (None,), "reset_after": (True,)}


class _ForAllSteps(torch.autograd.Function):
    """Repeat a side input (N, H) for all steps. Its gradient adds up the steps in their order.

    The order of PyTorch's sum depends on the number of columns: the gradient of a sequence would depend on whether
    there are others.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(value, time, seq_len):
        return torch.stack([value], time).expand(*value.shape[:time], seq_len, *value.shape[time:])

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.time, ctx.seq_len = inputs

    @staticmethod
    def backward(ctx, gradient):
        sums = gradient.cumsum(ctx.time) if ctx.seq_len else gradient
        return (sums.select(ctx.time, -1) if ctx.seq_len else sums.sum(ctx.time)), None, None


class Recurrent(AcceleratedLayers):
    """A network of any cell, used like `torch.nn.GRU` and `torch.nn.LSTM`.

    Parameters
    ----------
    cell : cell or str
        A cell of :mod:`rnnkit.cells` or your own: an instance, or its class if all its parameters have defaults. Or the
        name of a mode, as for :class:`rnnkit.RNNDescriptor`.
    input_size, hidden_size, num_layers : int
        I, H and L.
    bias : bool
        Whether there are two biases; else there is none.
    batch_first : bool
        Whether input and output are (N, T, ...) instead of (T, N, ...).
    dropout : float
        Dropout between layers in training, a probability in [0, 1].
    bidirectional : bool
        Whether each layer also runs over the sequence in reverse (D = 2).
    proj_size : int
        P, the size of the projected output, if the cell supports it; 0 is no projection.
    learned_initial_state : bool
        Whether initial states are parameters, h0_l0 and so on; see :class:`rnnkit.RNNDescriptor`. They start as zeros.
    device : torch.device, optional
        Device of the parameters. On others than the CPU cells run on PyTorch's operations.
    dtype : torch.dtype, optional
        Type of the parameters: float32 or float64. None is PyTorch's default.

    Attributes
    ----------
    cell : cell or str
        The cell, with its parameters. You may assign another one whose weights have the same names and shapes.
    weight_ih_l0, weight_hh_l0, bias_ih_l0, ... : Parameter
        The blocks of :func:`rnnkit.weight_layout`, with their names and order; names of the reverse direction end in
        ``_reverse``. They include the vectors of a cell: ``u_l0`` (H,).

    Raises
    ------
    TypeError, ValueError
        As for :class:`rnnkit.RNNDescriptor`.

    Notes
    -----
    A cell whose only state is h takes and returns h, like `nn.GRU`; with one more state (h, c), like `nn.LSTM`; with
    several a tuple of h and each of them, in order.

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
        self,
        cell: Any,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        proj_size: int = 0,
        learned_initial_state: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)  # RNNBase would create parameters, and only for its own modes
        for name, value in (("bias", bias), ("batch_first", batch_first)):
            if not isinstance(value, bool):
                raise wrong_type("Recurrent", name, "a bool", value)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        own = checked("Recurrent", cell, "cell"), input_size, hidden_size, num_layers, bidirectional
        options = {"bias": bias, "dropout": dropout, "proj_size": proj_size, "dtype": DTYPES.get(dtype, "float32")}
        options["learned_initial_state"] = self.learned_initial_state = learned_initial_state
        desc = RNNDescriptor(*own, **options)  # type: ignore[arg-type]
        if desc.dropout and desc.num_layers == 1:
            warnings.warn(f"Recurrent: dropout={desc.dropout} has no effect with num_layers=1", stacklevel=2)
        self.input_size, self.hidden_size, self.num_layers = desc.input_size, desc.hidden_size, desc.num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, desc.dropout
        self.bidirectional, self.proj_size = desc.bidirectional, desc.proj_size or 0
        self._set_cell(desc)
        layout = weight_layout(desc)
        for name, shape, _ in layout:
            with torch.inference_mode(False):  # parameters of inference mode could not be trained later
                self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self._flat_weights_names = [block.name for block in layout]
        suffixes = [suffix_of(layer, d) for layer in range(desc.num_layers) for d in range(desc.num_directions)]
        self._all_weights = [[name for name in self._flat_weights_names if name.endswith(end)] for end in suffixes]
        self._init_flat_weights()
        self.reset_parameters()

    @property
    def cell(self) -> Any:
        return self.__dict__["cell"]

    @cell.setter
    def cell(self, cell: Any) -> None:
        old = self._trained_desc()
        desc = replace(old, mode=checked("Recurrent", cell, "cell"))
        if weight_layout(desc) != weight_layout(old):
            expected, got = (text_of_mode(one.mode) for one in (old, desc))
            expected = f"be a cell whose weights have the names and shapes of those with {expected}"
            raise ValueError(message("Recurrent", "cell", expected, got, "create another module"))
        self._set_cell(desc)

    def _set_cell(self, desc: RNNDescriptor) -> None:
        self.__dict__["cell"] = desc.mode
        self.mode = mode_text(desc.mode)
        self._names_of_states, self._draws_noise = ("h", *desc.states), desc.draws_noise
        self._names_of_inputs = tuple(side_input.name for side_input in desc.cell.declaration.inputs)
        self._ranges = {vector.name: (vector.low, vector.high) for vector in desc.cell.declaration.vectors}

    def _trained_desc(self) -> RNNDescriptor:
        trained = self._rnnkit_network(self.dropout)._replace(training=True)
        return replace(descriptor(trained, self._rnnkit_dtype()), mode=self.cell)

    @property
    def _rnnkit_states(self) -> tuple[str, ...]:
        return self._names_of_states

    def _rnnkit_drawn(self) -> tuple[float, bool]:
        return self._rnnkit_dropout(), self.training and self._draws_noise

    @property
    def _rnnkit_has_own_cell(self) -> bool:  # type: ignore[override]
        return not isinstance(self.cell, str)

    def reset_parameters(self) -> None:
        """Initialise all parameters, uniform in [-1/sqrt(H), 1/sqrt(H)], or in the range declared for a vector.

        Uses PyTorch's generator: `torch.manual_seed` applies.
        """
        bound = 1 / sqrt(self.hidden_size)
        for name, parameter in self.named_parameters():
            low, high = self._ranges.get(name.rpartition("_l")[0], (None, None))
            nn.init.uniform_(parameter, -bound if low is None else low, bound if high is None else high)
        self._zero_initial_states()

    def forward(
        self,
        input: Any,
        hx: Any = None,
        lengths: Any = None,
        resets: Any = None,
        all_states: bool = False,
        inputs: Any = None,
        mask: Any = None,
    ) -> tuple[Any, ...]:
        """Run the network, like :class:`rnnkit.torch.GRU`.

        Parameters
        ----------
        input, hx, lengths, resets, all_states, mask
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
        return super().forward(self._with_inputs(input, inputs), hx, lengths, resets, all_states, mask)

    def _with_inputs(self, input: Any, inputs: Any) -> Any:
        """Append the side inputs to the columns of the input."""
        calls.check_kind(input)
        names = self._names_of_inputs
        if not names and inputs is None:
            return input
        if not isinstance(inputs, Mapping) or set(inputs) != set(names):
            got = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
            expected = "be None, as the cell has no side inputs"
            if names:
                expected = f"be a mapping of {', '.join(names)} to tensors"
            raise TypeError(message("forward", "inputs", expected, got))
        packed = isinstance(input, PackedSequence)
        data = input.data if packed else input
        columns = [data, *(self._expanded(name, inputs[name], data, packed) for name in names)]
        filled = [one for one in columns if one.shape[-1] > 0]  # a cell whose gates have no W takes no x
        wide = filled[0] if len(filled) == 1 else torch.cat(filled, -1)
        return input._replace(data=wide) if packed else wide

    def _expanded(self, name: str, value: Any, data: Tensor, packed: bool) -> Tensor:
        """Expand a side input to one number for each unit of each row of `data`."""
        value = value.data if packed and isinstance(value, PackedSequence) else value
        rows, size = data.shape[:-1], self.hidden_size
        shapes = {(*rows, size), (*rows, 1)}
        if data.dim() == 3:
            time = 1 if self.batch_first else 0
            if isinstance(value, Tensor) and tuple(value.shape) == (rows[1 - time], size):
                if torch.compiler.is_compiling():  # dynamo warns of functions with a gradient of their own
                    value = value.unsqueeze(time)
                    shapes.add(tuple(value.shape))
                else:
                    value = _ForAllSteps.apply(value, time, rows[time])
        if not isinstance(value, Tensor) or tuple(value.shape) not in shapes or value.dtype != data.dtype:
            got = f"{tuple(value.shape)} and {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
            expected = f"have shape {' or '.join(map(str, sorted(shapes)))} and be {data.dtype}"
            raise TypeError(message("forward", f'inputs["{name}"]', expected, got))
        return value.expand(*rows, size)

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raise if the input has a wrong number of axes or columns, or another dtype than the parameters."""
        appended = len(self._names_of_inputs) * self.hidden_size
        super().check_input(input[..., : input.shape[-1] - appended] if appended else input, batch_sizes)

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        """Raise if the shapes of the states do not fit the input, or they have another dtype than the parameters."""
        if isinstance(hidden, Tensor):
            super().check_forward_args(input, hidden, batch_sizes)
            return
        hidden_shape, dtype = self.get_expected_hidden_size(input, batch_sizes), self._rnnkit_dtype()
        for index, state in enumerate(hidden):
            if state.dtype != dtype and not is_autocast(state.device):
                raise TypeError(message("forward", f"hx[{index}]", f"be {dtype} as the parameters are", state.dtype))
            shape = (*hidden_shape[:2], self.hidden_size) if index else hidden_shape
            self.check_hidden_size(state, shape, f"Expected hidden[{index}] size {{}}, got {{}}")

    def extra_repr(self) -> str:
        """Return the arguments in the module's repr."""
        return f"{self.cell!r}, {super().extra_repr()}"

    def network(self) -> Any:
        """Return an rnnkit network with copies of the weights.

        Returns
        -------
        LSTM, GRU, RNN or Network
            A network for NumPy arrays, or to save: ``module.network().save(path)``. Time-major, whatever batch_first.

        Raises
        ------
        TypeError
            The parameters are neither float32 nor float64.
        """
        if DTYPES.get(self._rnnkit_dtype()) not in HOST_DTYPES:
            expected = f"be {' or '.join(HOST_DTYPES)}"
            got = self._rnnkit_dtype()
            raise TypeError(message("network", "dtype of the parameters", expected, got, "convert it with .float()"))
        desc = self._trained_desc()
        named = {name: getattr(self, name).detach().cpu().numpy() for name in self._flat_weights_names}
        return network_of(desc, pack_weights(desc, named))

    @classmethod
    def from_network(cls, net: Any, *, batch_first: bool = False) -> Self:
        """Create a module from a network, with copies of its weights.

        Parameters
        ----------
        net : LSTM, GRU, RNN or Network
            A network in float32 or float64 without cell_clip and input_mode="skip"; a GRU must have reset_after.
        batch_first : bool
            Whether the module is batch-major.

        Returns
        -------
        Recurrent
            The module. If the network has one bias, the other is zeros.

        Raises
        ------
        TypeError, ValueError
            `net` is not a network, or has an option that the module does not support.

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
        options = {"proj_size": desc.proj_size or 0, "learned_initial_state": desc.learned_initial_state}
        options["dtype"] = getattr(torch, desc.dtype)
        module = cls(*sizes, desc.dropout, desc.bidirectional, **options, device="meta")
        with torch.inference_mode(False):
            module.to_empty(device="cpu")
        blocks = weight_views(desc, net.to(np).weights)
        with torch.no_grad():
            for name in module._flat_weights_names:
                parameter = getattr(module, name)
                parameter.copy_(torch.from_numpy(blocks[name].copy())) if name in blocks else parameter.zero_()
        return module

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"mode": mode_text(state["cell"])})  # the saved text may be another process's
