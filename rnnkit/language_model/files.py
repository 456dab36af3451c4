"""Files of models: a network with extra arrays, as `rnnkit.Network.save` writes it."""

from __future__ import annotations

import json
import os
from os import PathLike
from typing import Any

import numpy as np

import rnnkit
from rnnkit.errors import message

MAX_CHARS = 1 << 22  # of a text


def write(path: str | PathLike[str], desc: rnnkit.RNNDescriptor, w: np.ndarray, arrays: dict[str, Any]) -> None:
    """Write a network and extra arrays; raise ValueError for a text that `File.object_of` would refuse."""
    for name, value in arrays.items():
        if isinstance(value, str) and len(value) > MAX_CHARS:
            raise ValueError(message("save", f"path {os.fspath(path)!r}", _text(name), f"{len(value)} characters"))
    rnnkit.Network.from_descriptor(desc, w).save(path, **arrays)


class File:
    """The network of a file, and its extra arrays, which are checked as they are taken.

    Parameters
    ----------
    path : str or path-like

    Raises
    ------
    OSError
        The file cannot be opened.
    ValueError
        The file is damaged, or holds something else. Nothing in it is ever unpickled, as in `rnnkit.load`.
    """

    def __init__(self, path: str | PathLike[str]):
        net = rnnkit.load(path)
        self.desc, self.weights, self.arrays = net.desc, net.weights, net.arrays
        self._where = f"path {os.fspath(path)!r}"

    def refusal(self, expected: str, got: Any) -> ValueError:
        """Return a ValueError about the file, to raise."""
        return ValueError(message("load", self._where, expected, got))

    def require(self, *names: str) -> None:
        """Raise ValueError unless the file has these arrays."""
        missing = [name for name in names if name not in self.arrays]
        if missing:
            raise self.refusal(f"hold {', '.join(names)}", f"no {', '.join(missing)}")

    def array_of(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array; raise ValueError unless it has this dtype and shape."""
        found = self.arrays[name]
        if (found.dtype, found.shape) != (dtype, shape):
            got = f"dtype {found.dtype} and shape {found.shape}"
            raise self.refusal(f"hold {name} of dtype {dtype} and shape {shape}", got)
        return found

    def object_of(self, name: str) -> dict[str, Any]:
        """Return an array that is one text: a JSON object."""
        text = self.arrays[name]
        if text.dtype.kind != "U" or text.shape != () or text.dtype.itemsize > 4 * MAX_CHARS:
            raise self.refusal(_text(name), f"dtype {text.dtype} and shape {text.shape}")
        try:
            found = json.loads(str(text))
        except (ValueError, RecursionError, SystemError) as error:  # SystemError: no characters of Unicode
            raise self.refusal(f"hold {name} as JSON", str(error)[:400]) from error
        if not isinstance(found, dict):
            raise self.refusal(f"hold {name} as a JSON object", type(found).__name__)
        return found


def _text(name: str) -> str:
    return f"hold {name} as one text of at most {MAX_CHARS} characters"
