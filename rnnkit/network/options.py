"""Options that PyTorch's modules have, and the extra arrays of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnkit.common.arrays import Array, copy_of, library_of, on_host
from rnnkit.errors import message, wrong_type


def check_torch_options(name: str, options: dict[str, Any]) -> None:
    """Remove PyTorch options that have no effect here; raise for those that would change the meaning."""
    batch_first = options.pop("batch_first", False)
    if not isinstance(batch_first, bool):
        raise wrong_type(name, "batch_first", "a bool", batch_first)
    if batch_first:
        cure = "rnnkit takes x of shape (T, N, I): pass numpy.swapaxes(x, 0, 1)"
        raise ValueError(message(name, "batch_first", "be False", batch_first, cure))
    if "nonlinearity" in options:
        raise TypeError(message(name, "nonlinearity", "be left out", repr(options["nonlinearity"]), "only RNN has it"))


def as_array(value: Any) -> Array:
    """Convert an extra array, for example a list of names, to an array."""
    return value if library_of(value) is not None else np.asarray(value)


def fits_gpu(array: Any) -> bool:
    """Return whether an array can be on a GPU: text cannot."""
    return library_of(array) is not np or array.dtype.kind in "biufc"


def copies_of(arrays: Mapping[str, Any]) -> dict[str, Array]:
    """Return a copy of each array, on its device."""
    return {name: copy_of(as_array(value)) for name, value in arrays.items()}


def bits_of(arrays: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return dtype, shape and bytes of each array, to compare arrays on any device."""
    hosts = {name: on_host(as_array(value)) for name, value in arrays.items()}
    return {name: (str(host.dtype), host.shape, host.tobytes()) for name, host in hosts.items()}
