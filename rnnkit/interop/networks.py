"""What the converters share: gates in the order of others, checks of named arrays, and a network made of them.

An order is written as the names of our gates (`rnnkit.descriptor.descriptor`) with blanks between them, "z r n" for
example; each framework's stands in its own file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rnnkit.common.arrays import on_host
from rnnkit.descriptor.descriptor import HOST_DTYPES, RNNDescriptor
from rnnkit.descriptor.weights import host_array, pack_weights, weight_views
from rnnkit.errors import message, wrong_shape, wrong_type
from rnnkit.network.classes import CLASSES, mode_of
from rnnkit.network.networks import GRU, LSTM, RNN, network_of
from rnnkit.network.networks import Network as NetworkOfCell

Network = LSTM | GRU | RNN | NetworkOfCell


def gate_order(desc: RNNDescriptor) -> str:
    """Return the order of the gates in our blocks.

    >>> gate_order(RNNDescriptor("lstm", 3, 5))
    'i f g o'
    """
    return " ".join(gate.name for gate in desc.cell.declaration.gates)


def gate_rows(num_gates: int) -> str:
    """Return what the rows of so many gates together are called in messages, "4*hidden_size" for example."""
    return "hidden_size" if num_gates == 1 else f"{num_gates}*hidden_size"


def reordered(array: np.ndarray, have: str, want: str, axis: int = 0) -> np.ndarray:
    """Return the blocks of gates along an axis in another order, as a new array.

    Parameters
    ----------
    array : ndarray
        As many blocks of one size along `axis` as `have` names.
    have, want : str
        Names of the gates, in their order in the array and in what is returned; "" is no block.
    axis : int
        Along which the blocks stand.

    Examples
    --------
    >>> reordered(np.array([1, 1, 2, 2, 3, 3]), "z r n", "r z n").tolist()
    [2, 2, 1, 1, 3, 3]
    """
    names = have.split()
    blocks = np.split(array, len(names), axis)
    return np.concatenate([blocks[names.index(name)] for name in want.split()], axis)


def network(desc: RNNDescriptor, named: Mapping[str, np.ndarray]) -> Network:
    """Return a network that holds copies of these blocks, which have the names and the layout of `weight_layout`."""
    return network_of(desc, pack_weights(desc, named))


def mode_of_rows(function: str, name: str, rows: int, hidden_size: int, **activation: str | None) -> str:
    """Return the mode whose gates have so many rows in all.

    `activation` is one argument of the converter by its name, as the rows do not tell that of a vanilla network: "tanh"
    or "relu", or None for tanh; of the others it is None.
    """
    modes = {RNNDescriptor(mode, 1, 1).num_gates * hidden_size: mode for mode in CLASSES}
    if rows not in modes:
        counts = " or ".join(str(count) for count in sorted(modes))
        expected = f"have {counts} rows, 1, 3 or 4 gates of hidden_size={hidden_size}"
        raise ValueError(message(function, name, expected, rows))
    if rows != hidden_size:
        check_left_out(function, f'with mode="{modes[rows]}"', **activation)
        return modes[rows]
    ((argument, chosen),) = activation.items()
    if isinstance(chosen, np.ndarray) or chosen not in (None, "tanh", "relu"):
        raise ValueError(message(function, argument, 'be "tanh" or "relu"', repr(chosen)))
    return mode_of("RNN", nonlinearity=chosen or "tanh")


def check_left_out(function: str, why: str, **options: Any) -> None:
    """Refuse options that are not None where something else tells them."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(message(function, name, f"be left out {why}", repr(value)))


def real_array(function: str, name: str, value: Any) -> np.ndarray:
    """Return a value as a float32 or float64 array on the host: a tensor of PyTorch may be on any device."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:  # before it is converted: NumPy has no bfloat16
        _check_real(function, name, dtype)
    if hasattr(value, "detach"):
        try:
            value = value.detach().cpu()
        except RuntimeError as error:  # it has a shape and no numbers
            raise ValueError(message(function, name, "be an array", error)) from error
    array = host_array(function, name, value)
    _check_real(function, name, array.dtype)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of NumPy's, which JAX and MXNet have too, or PyTorch's."""
    try:
        return np.dtype(dtype).name
    except TypeError:
        return str(dtype).rpartition(".")[2]  # torch.float32


def _check_real(function: str, name: str, dtype: Any) -> None:
    if dtype_name(dtype) not in HOST_DTYPES:
        expected = f"be {' or '.join(HOST_DTYPES)}"
        raise TypeError(message(function, name, expected, dtype_name(dtype), 'convert it to "float32" first'))


def common_dtype(function: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Return the dtype that all these arrays have."""
    first, *others = arrays
    for name in others:
        if arrays[name].dtype != arrays[first].dtype:
            expected = f"be {arrays[first].dtype} as {first} is"
            raise TypeError(message(function, name, expected, arrays[name].dtype, "convert one of them first"))
    return arrays[first].dtype.name


def check_shape(
    function: str, name: str, array: Any, shape: tuple[int | None, ...], dims: tuple[str, ...]
) -> None:
    """Check a shape, of which None is any size; `dims` are the names of its sizes for the message."""
    found = tuple(array.shape)  # PyTorch's is a class of its own
    if len(found) != len(shape) or any(n not in (None, m) for n, m in zip(shape, found, strict=True)):
        raise wrong_shape(function, name, shape, dims, found)


def blocks_of(
    function: str, net: Network, why: str, cells: Iterable[type] = (), modes: Iterable[str] = CLASSES,
    **allowed: Iterable[Any]
) -> dict[str, np.ndarray]:
    """Return the named blocks of a network on the host, views where it is there itself.

    A mode or cell that is not among those given, and options of its descriptor that are not among the allowed values,
    which another framework has, are refused.
    """
    if not isinstance(net, Network):
        raise wrong_type(function, "net", "an rnnkit.RNN, GRU or LSTM", net)
    mode = net.desc.mode
    if mode not in modes and not isinstance(mode, tuple(cells)):
        known = " or ".join([*(f'"{name}"' for name in modes), *(cell.__name__ for cell in cells)])
        raise ValueError(message(function, "net.desc.mode", f"be {known}", repr(mode), "net.save takes any cell"))
    for option, values in {"dtype": HOST_DTYPES, **allowed}.items():
        found = getattr(net.desc, option)
        if found not in values:
            listed = " or ".join(repr(value) if isinstance(value, str) else str(value) for value in values)
            raise ValueError(message(function, f"net.desc.{option}", f"be {listed}", repr(found), why))
    return weight_views(net.desc, on_host(net.weights))
