"""Files of named arrays: NumPy's .npz without pickle, written beside its place and renamed."""

from __future__ import annotations

import os
import tokenize
import uuid
import zipfile
import zlib
from os import PathLike
from typing import Any, BinaryIO

import numpy as np

from rnnkit.errors import message

# What zipfile and numpy raise on a file that is damaged somewhere inside.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
    EOFError,
    SyntaxError,
    ValueError,
    OSError,
    NotImplementedError,
    RuntimeError,
)
MAGIC = b"PK\x03\x04"  # np.load would take a file that begins otherwise for a pickle, and recommend to load it as one


def write(path: str | PathLike[str], members: dict[str, Any]) -> None:
    """Write the members under their names; nobody ever sees half a file, and a failure leaves what was there before."""
    target = os.fspath(path)
    beside = f"{target}.{uuid.uuid4().hex}.tmp"
    try:
        with open(beside, "xb") as file:
            np.savez(file, **members)
            file.flush()
            os.fsync(file.fileno())  # else a power cut after the rename could leave an empty file
        os.replace(beside, target)
    except BaseException as error:
        if os.path.exists(beside):
            os.remove(beside)
        if isinstance(error, OSError) and error.filename == beside:
            error.filename = target  # the name that the caller knows
        raise


def _begins_with(file: BinaryIO, magic: bytes) -> bool:
    file.seek(0)
    return file.read(len(magic)) == magic


def read(function: str, path: str | PathLike[str], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the named members; raise OSError without a file, ValueError if it is damaged or lacks one of them."""
    where = f"path {os.fspath(path)!r}"
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file) or not _begins_with(file, MAGIC):
            raise ValueError(message(function, where, "be a complete .npz file", "a cut-off one or another kind"))
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as archive:
                missing = [name for name in names if name not in archive]
                members = {name: archive[name] for name in names if name in archive}
        except DAMAGE as error:
            expected = "be an undamaged .npz file of plain arrays"
            raise ValueError(message(function, where, expected, str(error) or type(error).__name__)) from error
    if missing:
        raise ValueError(message(function, where, f"hold {', '.join(names)}", f"no {', '.join(missing)}"))
    return members
