"""Load and save safetensors files with PyTorch's names; those that rnnkit writes also store the descriptor.

The package safetensors reads and writes the format; it is imported when a file is read or written.
"""

from __future__ import annotations

import os
from os import PathLike
from typing import Any

import numpy as np

from rnnkit.common import archive
from rnnkit.descriptor.saved import descriptor_json, descriptor_of
from rnnkit.errors import message
from rnnkit.interop.networks import Network, blocks_of, network
from rnnkit.interop.packages import package
from rnnkit.interop.torch import from_torch, with_dot

DESCRIPTOR = "rnnkit"  # key in the metadata
DTYPES = "F32", "F64"


def load_safetensors(path: str | PathLike[str], prefix: str = "", **options: Any) -> Network:
    """Load a network from a safetensors file with PyTorch's names.

    Parameters
    ----------
    path : str or path-like
        Name of the file.
    prefix : str
        Module path of the network in a model, for example "encoder.rnn"; only tensors of this module are read.
    **options
        Options of `from_torch`, for what names and shapes do not determine.  Not allowed for files of
        `save_safetensors`, which store all options.

    Returns
    -------
    RNN, GRU or LSTM
        Copies of the weights, in their dtype.

    Raises
    ------
    ImportError
        The package safetensors is not installed.
    OSError
        The file cannot be opened (FileNotFoundError: it does not exist).
    TypeError
        The tensors are not all float32 or all float64.
    ValueError
        The file is damaged or truncated, or `prefix` does not name one network.
    """
    name, module_prefix = archive.name_of("load_safetensors", path), with_dot("load_safetensors", prefix)
    where = f"path {name!r}"
    library = package("load_safetensors", "safetensors")
    archive.open_regular("load_safetensors", path).close()
    try:
        with library.safe_open(os.fsdecode(name), framework="numpy") as file:
            text = (file.metadata() or {}).get(DESCRIPTOR)
            names = list(file.keys())
            named = {name: _tensor(file, name) if _is_parameter_at(module_prefix, name) else None for name in names}
    except library.SafetensorError as error:
        got = f"a damaged one ({str(error)[:200]})"
        raise ValueError(message("load_safetensors", where, "be a complete safetensors file", got)) from error
    try:
        if text is None:
            return from_torch(named, prefix, **options)
        return _described(text, module_prefix, named, options)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"load_safetensors: {where} does not hold a network: {error}") from error


def save_safetensors(net: Network, path: str | PathLike[str], prefix: str = "") -> None:
    """Save a network to a safetensors file with PyTorch's names.

    Parameters
    ----------
    net : RNN, GRU or LSTM
        A network in float32 or float64.
    path : str or path-like
        Name of the file, used unchanged.  Written atomically, as by ``net.save``.
    prefix : str
        Module path of the network in a model, for example "encoder.rnn".

    Raises
    ------
    ImportError
        The package safetensors is not installed.
    OSError
        The file cannot be written.
    TypeError, ValueError
        `net` is not a network or has another dtype, `prefix` is not a str, or `path` is not a regular file.

    Notes
    -----
    The file holds the blocks of the network, and in the metadata, under "rnnkit", its descriptor as JSON.  PyTorch can
    load it unless the network has only one bias, ``input_mode="skip"``, ``reset_after=False`` or ``cell_clip``.
    """
    module_prefix = with_dot("save_safetensors", prefix)
    why, own = "float16 and bfloat16 networks run only on a GPU", {"learned_initial_state": (False, True)}
    blocks = blocks_of("save_safetensors", net, why, **own)
    package("save_safetensors", "safetensors")
    from safetensors.numpy import save

    named = {module_prefix + name: block for name, block in blocks.items()}
    data = save(named, {DESCRIPTOR: descriptor_json(net.desc)})
    with archive.replacing("save_safetensors", path) as file:
        file.write(data)


def _is_parameter_at(module_prefix: str, name: str) -> bool:
    """Whether a name may be a parameter of the module at this path; names in its submodules have another dot."""
    return name.startswith(module_prefix) and "." not in name.removeprefix(module_prefix)


def _tensor(file: Any, name: str) -> np.ndarray:
    dtype = file.get_slice(name).get_dtype()
    if dtype not in DTYPES:
        expected = f"be {' or '.join(DTYPES)}"
        cure = "convert it first, for example with PyTorch's .float()"
        raise TypeError(message("load_safetensors", f"the tensor {name!r}", expected, dtype, cure))
    return file.get_tensor(name)


def _described(text: str, module_prefix: str, named: dict[str, np.ndarray | None], options: dict[str, Any]) -> Network:
    """Return the network of a descriptor, with the tensors of a module."""
    if options:
        raise ValueError(f"the file already determines {' and '.join(options)}: do not pass it")
    blocks = {name.removeprefix(module_prefix): array for name, array in named.items() if array is not None}
    if not blocks:
        raise ValueError(f"no tensors at prefix={module_prefix!r}, only {', '.join(named)}"[:400])
    return network(descriptor_of(text), blocks)
