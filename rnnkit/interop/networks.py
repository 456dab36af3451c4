"""What the converters share: gates in the order of others, checks of named arrays, and a network made of them.

An order is written as the names of our gates (`rnnkit.descriptor`) with blanks between them, "z r n" for example;
each framework's stands in its own file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from rnnkit.arrays import on_host
from rnnkit.descriptor import HOST_DTYPES, RNNDescriptor
from rnnkit.errors import message, wrong_shape, wrong_type
from rnnkit.network import GRU, LSTM, RNN, network_of
from rnnkit.weights import host_array, pack_weights, weight_views

Network = LSTM | GRU | RNN


def gate_order(desc: RNNDescriptor) -> str:
    """Return the order of the gates in our blocks.

    >>> gate_order(RNNDescriptor("lstm", 3, 5))
    'i f g o'
    """
    return " ".join(gate.name for gate in desc.cell.declaration.gates)


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


def package(function: str, name: str) -> Any:
    """Import a package that only files need."""
    try:
        return import_module(name)
    except ImportError:
        cure = f"install it with pip install {name}"
        raise ImportError(message(function, f"the package {name}", "be installed", "none", cure)) from None


def real_array(function: str, name: str, value: Any) -> np.ndarray:
    """Return the float32 or float64 array of a value: of NumPy, a list, a tensor of PyTorch on whichever device."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:  # before it is converted: NumPy has no bfloat16
        _check_real(function, name, dtype)
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    array = host_array(function, name, value)
    _check_real(function, name, array.dtype)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_real(function: str, name: str, dtype: Any) -> None:
    found = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]  # PyTorch's are torch.float32
    if found not in HOST_DTYPES:
        expected = f"be {' or '.join(HOST_DTYPES)}"
        raise TypeError(message(function, name, expected, found, 'convert it to "float32" first'))


def common_dtype(function: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Return the dtype that all these arrays have."""
    first, *others = arrays
    for name in others:
        if arrays[name].dtype != arrays[first].dtype:
            expected = f"be {arrays[first].dtype} as {first} is"
            raise TypeError(message(function, name, expected, arrays[name].dtype, "convert one of them first"))
    return arrays[first].dtype.name


def check_shape(
    function: str, name: str, array: np.ndarray, shape: tuple[int | None, ...], dims: tuple[str, ...]
) -> None:
    """Check a shape, of which None is any size; `dims` are the names of its sizes for the message."""
    if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
        raise wrong_shape(function, name, shape, dims, array.shape)


def blocks_of(function: str, net: Network, why: str, **allowed: Iterable[Any]) -> dict[str, np.ndarray]:
    """Return the named blocks of a network on the host, views where it is there itself.

    Options of its descriptor that are not among the allowed values, which another framework has, are refused.
    """
    if not isinstance(net, Network):
        raise wrong_type(function, "net", "an rnnkit.RNN, GRU or LSTM", net)
    for option, values in {"dtype": HOST_DTYPES, **allowed}.items():
        found = getattr(net.desc, option)
        if found not in values:
            listed = " or ".join(repr(value) if isinstance(value, str) else str(value) for value in values)
            raise ValueError(message(function, f"net.desc.{option}", f"be {listed}", repr(found), why))
    return weight_views(net.desc, on_host(net.weights))


def both_biases(desc: RNNDescriptor, blocks: Mapping[str, np.ndarray], suffix: str) -> tuple[np.ndarray, np.ndarray]:
    """Return bW and bR of a pseudo-layer; one that the network lacks is zeros."""
    none = np.zeros(desc.num_gates * desc.hidden_size, desc.np_dtype)
    return blocks.get(f"bias_ih{suffix}", none), blocks.get(f"bias_hh{suffix}", none)


def one_bias(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the sum of two biases, with the bits of one where the other is 0."""
    return np.where(second == 0, first, np.where(first == 0, second, first + second))
