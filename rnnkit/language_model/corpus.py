"""Text for the language model: reading, splitting, batches, and the baselines of general-purpose compressors."""

from __future__ import annotations

import lzma
import sysconfig
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rnnkit.common import archive
from rnnkit.errors import message

LIBRARY_BYTES = 5 << 20  # more than a training run reads by default
HELD_OUT_FRACTION = 0.05
HELD_OUT_BYTES = 1 << 18  # of a large text; scored within about a second
VALIDATION_SHARE = 4  # part of the held-out size: 64 KiB of a large text, scored in a quarter of a second
# Folders to exclude: other packages, tests, and the generated tables of character encodings.
_EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"}


def library_source(num_bytes: int = LIBRARY_BYTES) -> bytes:
    """Return the first bytes of this machine's Python standard library: its ``*.py`` files, top-level modules first."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path.relative_to(root) for path in root.rglob("*.py")]
    text = bytearray()
    for path in sorted(paths, key=lambda path: (len(path.parts), path.parts)):
        if len(text) >= num_bytes:
            break
        if _EXCLUDED.isdisjoint(path.parts):
            text += (root / path).read_bytes()
    return bytes(text[:num_bytes])


def read_files(paths: Iterable[str | Path]) -> bytes:
    """Return the concatenated bytes of files. Raise OSError if one cannot be read, ValueError if there is no byte."""
    paths = list(paths)
    text = b"".join(map(_read, paths))
    if not text:
        expected = "name files with at least one byte in total"
        raise ValueError(message("read_files", "paths", expected, ", ".join(map(repr, map(str, paths))) or "none"))
    return text


def _read(path: str | Path) -> bytes:
    with archive.naming(path):
        return Path(path).read_bytes()


class Split(NamedTuple):
    """The parts of a text, in order: for training, for validation during training, and held out for the score."""

    training: bytes
    validation: bytes
    held_out: bytes


def split(text: bytes) -> Split:
    """Hold out the last 5 % of a text, at most 256 KiB, and take a quarter of that size before it for validation."""
    held_out = min(HELD_OUT_BYTES, int(len(text) * HELD_OUT_FRACTION))
    cut = len(text) - held_out
    start = cut - held_out // VALIDATION_SHARE
    return Split(text[:start], text[start:cut], text[cut:])


def alphabet(text: bytes) -> np.ndarray:
    """Return the bytes that occur in a text, in ascending order: (K,), uint8."""
    return np.flatnonzero(np.bincount(np.frombuffer(text, np.uint8), minlength=256)).astype(np.uint8)


def rows(text: bytes, batch_size: int, seq_len: int) -> np.ndarray:
    """Cut a text into rows of equal length, which form the batch; drop the remainder.

    Parameters
    ----------
    text : bytes
    batch_size, seq_len : int
        N and T, each at least 1.

    Returns
    -------
    ndarray (row_size, N), uint8
        A view of the text: row n of a batch is column n here. row_size > T.

    Raises
    ------
    ValueError
        The text is too short for one batch.
    """
    row_size = len(text) // batch_size
    if row_size <= seq_len:
        needed = f"have at least batch_size*(seq_len+1)={batch_size * (seq_len + 1)} bytes to train on"
        raise ValueError(message("rows", "text", needed, len(text), "give more text, or a smaller batch or seq_len"))
    return np.frombuffer(text, np.uint8, row_size * batch_size).reshape(batch_size, row_size).T


def num_batches(rows: np.ndarray, seq_len: int) -> int:
    """Return the batches in one pass over the rows (row_size, N), of seq_len < row_size steps each."""
    return (len(rows) - 1) // seq_len


def batch(rows: np.ndarray, seq_len: int, number: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return a batch by its number: each row continues from the batch before it, and at its end starts again.

    Parameters
    ----------
    rows : ndarray (row_size, N), uint8
    seq_len : int
        T, less than row_size.
    number : int
        Counted from 0.

    Returns
    -------
    inputs, targets : ndarray (T, N), uint8
        Bytes, and the byte that follows each of them; views of `rows`.
    first : bool
        Whether the rows start at their beginning; then drop the carried state.
    """
    start = number % num_batches(rows, seq_len) * seq_len
    stop = start + seq_len
    return rows[start:stop], rows[start + 1 : stop + 1], start == 0


def order0_bits(text: bytes) -> float:
    """Return the entropy of the text's own byte frequencies, in bits per byte."""
    counts = np.bincount(np.frombuffer(text, np.uint8))
    shares = counts[counts > 0] / len(text)
    return float(shares @ -np.log2(shares))


def zlib_bits(text: bytes) -> float:
    """Return the bits per byte that ``zlib -9`` needs for the text."""
    return 8 * len(zlib.compress(text, 9)) / len(text)


def lzma_bits(text: bytes, context: bytes = b"") -> float:
    """Return the bits per byte that LZMA2 needs for the text after it has compressed the context."""
    # Raw, without a container. The dictionary covers everything, so that LZMA can use all of the context.
    dict_size = max(len(context) + len(text), 1 << 16)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": dict_size}]

    def compressed_size(data):
        return len(lzma.compress(data, lzma.FORMAT_RAW, filters=filters))

    return 8 * (compressed_size(context + text) - compressed_size(context)) / len(text)


def baselines(text: bytes, before: bytes = b"") -> dict[str, float]:
    """Return the bits per byte of baselines on a text, by name; LZMA compresses `before` first."""
    lzma_name = "lzma, given the training text first" if before else "lzma"
    return {
        "order-0 entropy": order0_bits(text),
        "zlib -9": zlib_bits(text),
        lzma_name: lzma_bits(text, before),
    }
