"""Shared helpers of the converters: gate reordering, checks of named arrays, construction of networks.

A gate order is the names of our gates (`rnnkit.descriptor.descriptor`), separated by blanks, for example "z r n". Each
framework's order is in its own module.
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

Network = LSTM | GRU | RNN | NetworkOfCell  # any network


def gate_order(desc: RNNDescriptor) -> str:
    """Return the gate order of our blocks.

    >>> gate_order(RNNDescriptor("lstm", 3, 5))
    'i f g o'
    """
    return " ".join(gate.name for gate in desc.cell.declaration.gates)


def gate_rows(num_gates: int) -> str:
    """Return the name of a row dimension for errors, for example "4*hidden_size"."""
    return "hidden_size" if num_gates == 1 else f"{num_gates}*hidden_size"


def reordered(array: np.ndarray, have: str, want: str, axis: int = 0) -> np.ndarray:
    """Return an array with its gates along an axis in another order, as a copy.

    Parameters
    ----------
    array : ndarray
        One block for each gate of `have`, all of the same size, along `axis`.
    have, want : str
        Gate orders of `array` and of the result; "" is no block.
    axis : int
        Axis of the blocks.

    Examples
    --------
    >>> reordered(np.array([1, 1, 2, 2, 3, 3]), "z r n", "r z n").tolist()
    [2, 2, 1, 1, 3, 3]
    """
    names = have.split()
    blocks = np.split(array, len(names), axis)
    return np.concatenate([blocks[names.index(name)] for name in want.split()], axis)


def network(desc: RNNDescriptor, named: Mapping[str, np.ndarray]) -> Network:
    """Return a network with copies of these blocks, which have the names and shapes of `weight_layout`."""
    return network_of(desc, pack_weights(desc, named))


def mode_of_rows(function: str, name: str, rows: int, hidden_size: int, **activation: str | None) -> str:
    """Return the mode whose gates have this number of rows in all.

    `activation` is one keyword with the converter's own name for it, as rows do not show the activation of a vanilla
    network: "tanh" or "relu", or None for tanh; for other modes it must be None.
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
    """Raise if an option is given that is already determined."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(message(function, name, f"be left out {why}", repr(value)))


def real_array(function: str, name: str, value: Any) -> np.ndarray:
    """Return a value as a float32 or float64 array on the host; a PyTorch tensor may be on any device."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:  # before the conversion: NumPy has no bfloat16
        _check_real(function, name, dtype)
    if hasattr(value, "detach"):
        try:
            value = value.detach().cpu()
        except RuntimeError as error:  # a meta tensor: it has no data
            raise ValueError(message(function, name, "be an array", error)) from error
    array = host_array(function, name, value)
    _check_real(function, name, array.dtype)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of NumPy (also used by JAX and MXNet) or PyTorch."""
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
            raise TypeError(message(function, name, expected, arrays[name].dtype, "convert one of the two first"))
    return arrays[first].dtype.name


def check_shape(function: str, name: str, array: Any, shape: tuple[int | None, ...], dims: tuple[str, ...]) -> None:
    """Check a shape, where None is any size; `dims` names the dimensions for the error."""
    found = tuple(array.shape)  # PyTorch's torch.Size is a subclass
    if len(found) != len(shape) or any(n not in (None, m) for n, m in zip(shape, found, strict=True)):
        raise wrong_shape(function, name, shape, dims, found)


def blocks_of(
    function: str,
    net: Network,
    why: str,
    cells: Iterable[type] = (),
    modes: Iterable[str] = CLASSES,
    **allowed: Iterable[Any],
) -> dict[str, np.ndarray]:
    """Return the named blocks of a network on the host, as views if the network is there.

    Raise if its mode or cell, or an option of its descriptor, is not among the values that the framework supports.
    """
    if not isinstance(net, Network):
        raise wrong_type(function, "net", "an rnnkit.RNN, GRU or LSTM", net)
    mode = net.desc.mode
    if mode not in modes and not isinstance(mode, tuple(cells)):
        known = " or ".join([*(f'"{name}"' for name in modes), *(cell.__name__ for cell in cells)])
        raise ValueError(message(function, "net.desc.mode", f"be {known}", repr(mode), "net.save saves any cell"))
    for option, values in {"dtype": HOST_DTYPES, "learned_initial_state": (False,), **allowed}.items():
        found = getattr(net.desc, option)
        if found not in values:
            listed = " or ".join(repr(value) if isinstance(value, str) else str(value) for value in values)
            raise ValueError(message(function, f"net.desc.{option}", f"be {listed}", repr(found), why))
    return weight_views(net.desc, on_host(net.weights))
