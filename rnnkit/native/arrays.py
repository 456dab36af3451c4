"""The weights of a network in C: constant arrays in the source, or a file of their own that the program reads."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from rnnkit.equations.c_text import literal

_ALIGNMENT, _TITLE = 64, b"rnnkit C weights"


class Arrays:
    """Collects arrays. In a file they are little-endian, each from a multiple of 64 bytes on, after a title and a
    digest of all that follows, by which the program knows the file.

    Attributes
    ----------
    parameter, argument : str
        What functions of a layer take before their other arguments, and what a step passes: where the file is in
        memory, or nothing.
    """

    def __init__(self, in_file: bool) -> None:
        self.in_file, self._parts, self._size = in_file, [], _ALIGNMENT
        self.parameter, self.argument = ("const unsigned char *rk_file, ", "state->weights, ") if in_file else ("", "")

    def text(self, name: str, values: np.ndarray) -> str:
        """Add an array of int8 or of the network's dtype, and return what declares it in C."""
        kind = "signed char" if values.dtype == np.int8 else "real"
        if self.in_file:
            start, data = self._size, values.astype(values.dtype.newbyteorder("<")).tobytes()
            self._parts.append(data + bytes(-len(data) % _ALIGNMENT))
            self._size += len(self._parts[-1])
            return f"#define {name} ((const {kind} *)(rk_file + {start}))\n"
        per_line = 24 if values.dtype == np.int8 else 8
        texts = [_number(value, values.dtype) for value in values] or ["0"]
        lines = "".join(
            f"  {', '.join(texts[start : start + per_line])},\n" for start in range(0, len(texts), per_line)
        )
        return f"static const {kind} {name}[{len(texts)}] RK_ALIGNED = {{\n{lines}}};\n"

    def file(self) -> bytes:
        """Return the contents of the file."""
        data = b"".join(self._parts)
        start = _TITLE + hashlib.blake2b(data, digest_size=16).digest()
        return start + bytes(_ALIGNMENT - len(start)) + data

    def start(self) -> str:
        """Return the bytes that the program compares, as a list in C."""
        return ", ".join(map(str, self.file()[:32]))


def _number(value: Any, dtype: np.dtype) -> str:
    return str(value) if dtype == np.int8 else literal(value, dtype.type)
