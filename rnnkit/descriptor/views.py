"""The weights of a network as its user sees them: what is assigned to them is written to the one buffer."""

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
    """The named blocks of a flat buffer: what is read is a view, what is assigned is written to the buffer."""

    def __init__(self, function: str, desc: RNNDescriptor, w: Any) -> None:
        self._function, self._blocks = function, weight_views(desc, w)

    def __getitem__(self, name: str) -> Floats:
        return self._blocks[name]

    def __setitem__(self, name: str, array: Any) -> None:
        if name not in self._blocks:
            raise ValueError(message(self._function, "views", f"hold {', '.join(self._blocks)}", repr(name)))
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
    """Write an array to one of its dtype and shape, unless it is that itself, as after `net.weights *= 2`."""
    if array is buffer:
        return
    if library_of(array) is None or device_of(array) != device_of(buffer):
        got = device_of(array) if library_of(array) is not None else type(array).__name__
        cure = "net.to(numpy or cupy) is the network on the other device"
        raise ValueError(message(function, argument, f"be on {device_of(buffer)} as the network is", got, cure))
    if isinstance(buffer, np.ndarray) and not buffer.flags.writeable:
        expected, cure = "stay as it is in read-only memory", "net.copy() has memory of its own"
        raise ValueError(message(function, argument, expected, "another array", cure))
    with device_context(buffer):
        buffer[...] = array
