"""Named views of the flat weight buffer; assignment writes to the buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rnnkit.common.arrays import device_context, device_of, library_of, not_an_array
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import weight_views
from rnnkit.errors import message, wrong_shape
from rnnkit.types import Floats


class Views(Mapping[str, Floats]):
    """Mapping of names to views of a flat buffer; assigning an array to a name writes to the buffer."""

    def __init__(self, function: str, desc: RNNDescriptor, w: Any) -> None:
        self._function, self._blocks = function, weight_views(desc, w)

    def __getitem__(self, name: str) -> Floats:
        return self._blocks[name]

    def __setitem__(self, name: str, array: Any) -> None:
        if name not in self._blocks:
            expected = f"have one of the names {', '.join(self._blocks)}"
            raise ValueError(message(self._function, "views", expected, repr(name)))
        argument, block = f'views["{name}"]', self._blocks[name]
        if library_of(array) is None:
            raise not_an_array(self._function, argument, "an array", array)
        if array.dtype != block.dtype:
            expected, cure = f"be {block.dtype} as the descriptor says", f'convert it with .astype("{block.dtype}")'
            raise TypeError(message(self._function, argument, expected, array.dtype, cure))
        if array.shape != block.shape:
            dims = ("rows", "columns")[: block.ndim]
            raise wrong_shape(self._function, argument, block.shape, dims, array.shape)
        write(self._function, argument, array, block)

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __repr__(self) -> str:
        return repr(self._blocks)


def write(function: str, argument: str, array: Any, buffer: Any) -> None:
    """Copy an array to a buffer of its dtype and shape. No-op for the buffer itself, as after `net.weights *= 2`."""
    if array is buffer:
        return
    if library_of(array) is None or device_of(array) != device_of(buffer):
        got = device_of(array) if library_of(array) is not None else type(array).__name__
        cure = "move the network with net.to(numpy or cupy)"
        raise ValueError(message(function, argument, f"be on {device_of(buffer)} as the network is", got, cure))
    if isinstance(buffer, np.ndarray) and not buffer.flags.writeable:
        raise ValueError(f"{function}: {argument} is an array in read-only memory; net.copy() is writable")
    with device_context(buffer):
        buffer[...] = array
