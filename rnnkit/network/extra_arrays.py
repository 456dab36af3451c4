"""The extra arrays of a network: on which device, and whether two are equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnkit.common.arrays import Array, copy_of, library_of, on_host


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
