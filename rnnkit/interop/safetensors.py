"""Files of safetensors, with PyTorch's names for the blocks, and with the descriptor where rnnkit wrote them.

The package safetensors reads and writes the format; it is imported when a file is.
"""

from __future__ import annotations

import os
from os import PathLike
from typing import Any

import numpy as np

from rnnkit.descriptor import archive
from rnnkit.descriptor.saved import descriptor_json, descriptor_of
from rnnkit.errors import message
from rnnkit.interop.networks import Network, blocks_of, network
from rnnkit.interop.packages import package
from rnnkit.interop.torch import from_torch, with_dot

DESCRIPTOR = "rnnkit"  # its key in the metadata
DTYPES = "F32", "F64"


def load_safetensors(path: str | PathLike[str], prefix: str = "", **options: Any) -> Network:
    """Return the network whose weights are in a file of safetensors, under PyTorch's names.

    Parameters
    ----------
    path : str or path-like
        Name of the file.
    prefix : str
        Where in a model the network stands, "encoder.rnn" for example; only what stands there is read.
    **options
        Those of `from_torch`, for what names and shapes leave open.  A file that `save_safetensors` wrote says
        everything itself and takes none.

    Returns
    -------
    RNN, GRU or LSTM
        With copies of the weights, in their dtype.

    Raises
    ------
    ImportError
        The package safetensors is not installed.
    OSError
        The file cannot be opened (FileNotFoundError: it is not there).
    TypeError
        A tensor is not float32 or float64 as the others are.
    ValueError
        The file is damaged or cut off, or what stands at `prefix` is not the weights of one network.
    """
    name, before = archive.name_of("load_safetensors", path), with_dot("load_safetensors", prefix)
    where = f"path {name!r}"
    library = package("load_safetensors", "safetensors")
    archive.open_regular("load_safetensors", path).close()
    try:
        with library.safe_open(os.fsdecode(name), framework="numpy") as file:
            text = (file.metadata() or {}).get(DESCRIPTOR)
            named = {name: _tensor(file, name) if _stands_at(before, name) else None for name in file.keys()}
    except library.SafetensorError as error:
        got = f"a damaged one ({str(error)[:200]})"
        raise ValueError(message("load_safetensors", where, "be a complete safetensors file", got)) from error
    try:
        return from_torch(named, prefix, **options) if text is None else _described(text, before, named, options)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(message("load_safetensors", where, "hold a network", error)) from error


def save_safetensors(net: Network, path: str | PathLike[str], prefix: str = "") -> None:
    """Write the weights of a network to a file of safetensors, under PyTorch's names.

    Parameters
    ----------
    net : RNN, GRU or LSTM
        In float32 or float64.
    path : str or path-like
        Name of the file, taken as it is.  It is written whole or not at all, as ``net.save`` does.
    prefix : str
        Where in a model the network belongs, "encoder.rnn" for example.

    Raises
    ------
    ImportError
        The package safetensors is not installed.
    OSError
        The file cannot be written.
    TypeError, ValueError
        `net` is no network or of another dtype, `prefix` no str, or `path` names what is no regular file.

    Notes
    -----
    The file holds the blocks that the network has, and its descriptor as JSON in the metadata, under "rnnkit".  PyTorch
    loads it where it has such a module: not with one bias alone, with ``input_mode="skip"``, ``reset_after=False`` or
    ``cell_clip``.
    """
    before = with_dot("save_safetensors", prefix)
    blocks = blocks_of("save_safetensors", net, "float16 and bfloat16 are a GPU's")
    package("save_safetensors", "safetensors")
    from safetensors.numpy import save

    data = save({before + name: block for name, block in blocks.items()}, {DESCRIPTOR: descriptor_json(net.desc)})
    with archive.replacing("save_safetensors", path) as file:
        file.write(data)


def _stands_at(before: str, name: str) -> bool:
    """Whether a name may be a parameter's of the module there: those of modules inside have another dot."""
    return name.startswith(before) and "." not in name.removeprefix(before)


def _tensor(file: Any, name: str) -> np.ndarray:
    dtype = file.get_slice(name).get_dtype()
    if dtype not in DTYPES:
        expected = f"be {' or '.join(DTYPES)}"
        cure = "convert it first, for example with PyTorch's .float()"
        raise TypeError(message("load_safetensors", f"the tensor {name!r}", expected, dtype, cure))
    return file.get_tensor(name)


def _described(text: str, before: str, named: dict[str, np.ndarray | None], options: dict[str, Any]) -> Network:
    """Return the network of a descriptor, which the tensors at a place must fit."""
    if options:
        raise ValueError(f"one that says itself what {' and '.join(options)} is")
    found = {name.removeprefix(before): array for name, array in named.items() if array is not None}
    if not found:
        raise ValueError(f"no tensors at prefix={before!r}, but {', '.join(named)}"[:400])
    return network(descriptor_of(text), found)
