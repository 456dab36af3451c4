"""Compression of files with a given model, or with one that starts from random weights and learns."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import NamedTuple

import rnnkit
from rnnkit.cells import LayerNormLSTM
from rnnkit.compression import container
from rnnkit.compression.container import Damage
from rnnkit.errors import message
from rnnkit.language_model.coding import Coder, digest
from rnnkit.language_model.model import TextModel

BLOCK = 1 << 20
"""Bytes of data in a block."""
CHUNK = 16  # steps between two updates of a model that learns
STREAMS_PRETRAINED, STREAMS = 64, 2
HIDDEN, EMBEDDING = 256, 64
MAX_STREAMS = (1 << 16) - 1  # largest number of its field
MAX_HIDDEN = 4096  # a model of 0.3 GB, the most that an untrusted small file can request
_FIELDS = Struct("<B4H16s")


class Description(NamedTuple):
    """Settings that a file was encoded with."""

    given: bool  # whether the user gave the model; then hidden and embedding are 0
    streams: int
    chunk: int  # steps between two updates; 0: the model does not learn
    hidden: int
    embedding: int
    digest: bytes  # of the model before its first update

    def pack(self) -> bytes:
        """Return the description as bytes."""
        return _FIELDS.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Description | None:
        """Return the description in these bytes, or None if it is invalid."""
        if len(data) != _FIELDS.size:
            return None
        given, *others = _FIELDS.unpack(data)
        found = cls(bool(given), *others)
        learns = 0 < found.hidden <= MAX_HIDDEN and found.embedding == EMBEDDING and found.chunk
        is_right = given < 2 and found.streams and (found.given or learns)
        return found if is_right else None

    def coder(self, model: TextModel | None, progress: Callable[[int], object]) -> Coder:
        """Return a coder with these settings; a given model is not changed."""
        own = _untrained(self.hidden, self.embedding) if model is None else model
        if self.chunk and model is not None:
            own = model.copy()
        return Coder(own, self.streams, self.chunk, progress)


def _untrained(hidden: int, embedding: int) -> TextModel:
    return TextModel.random(rnnkit.RNNDescriptor(LayerNormLSTM(), embedding, hidden), seed=0)


def description(
    model: TextModel | None = None, streams: int | None = None, hidden: int = HIDDEN, learns: bool = False
) -> Description:
    """Return settings for a given model, which may learn, or for a new one of `hidden` units, which always does."""
    if model is None:
        first = digest(_untrained(hidden, EMBEDDING))
        return Description(False, streams or STREAMS, CHUNK, hidden, EMBEDDING, first)
    default = STREAMS if learns else STREAMS_PRETRAINED
    return Description(True, streams or default, CHUNK if learns else 0, 0, 0, digest(model))


def compressed(
    data: Iterable[bytes], how: Description, model: TextModel | None = None, progress: Callable[[int], object] = int
) -> Iterator[bytes]:
    """Yield the parts of a compressed file, from blocks of 1 to `container.MAX_BLOCK_BYTES` bytes.

    `progress` is called with the number of bytes read since its last call.
    """
    yield container.start(how.pack())
    coder, count, size = how.coder(model, progress), 0, 0
    for block in data:
        yield container.block(count, block, coder.encode(block))
        count, size = count + 1, size + len(block)
    yield container.end(count, size)


def decompressed(
    data: bytes, model: TextModel | None = None, progress: Callable[[int], object] = int
) -> Iterator[bytes | Damage]:
    """Yield the blocks of a compressed file in order, with a `Damage` in place of each lost part.

    Raises
    ------
    ValueError
        The file is of another kind, its header is damaged, or it was compressed with a different model.
    """
    found, place = container.read_start(data, _refusal)
    how = Description.unpack(found)
    if how is None:
        raise _refusal("describe a model", "an invalid description")
    if how.given and model is None:
        raise ValueError(message("decompress", "model", f"have digest {how.digest.hex()}", "none", "give --model"))
    if model is not None and not how.given:
        raise ValueError("decompress: model must not be given: the file was compressed without one")
    coder = how.coder(model, progress)
    own = digest(model or coder.model)
    if own != how.digest:
        cure = "" if how.given else "the file was compressed by another version of rnnkit"
        raise ValueError(message("decompress", "model", f"have digest {how.digest.hex()}", own.hex(), cure))
    return _blocks(data, place, coder, how)


def _refusal(expected: str, actual: str) -> ValueError:
    return ValueError(message("decompress", "file", expected, actual))


def _blocks(data: bytes, place: int, coder: Coder, how: Description) -> Iterator[bytes | Damage]:
    for block in container.blocks(data, place):
        if isinstance(block, Damage):
            ends = how.chunk and block.count != 0  # the model had learned from this before later blocks
            yield block._replace(count=None) if ends else block
            if ends:
                return
            continue
        text = coder.decode(block.payload, block.size) if block.size else b""
        if zlib.crc32(text) == block.crc:
            yield text
            continue
        yield Damage(block.number, None if how.chunk else 1, "it decodes to wrong data")
        if how.chunk:
            return


def compress(
    data: bytes, model: TextModel | None = None, *, streams: int | None = None, hidden: int = HIDDEN,
    learns: bool = False,
) -> bytes:
    """Compress bytes with the predictions of a model.

    Parameters
    ----------
    data : bytes
    model : TextModel, optional
        The model that predicts; it is not changed, and `decompress` needs it. By default a network with random weights
        learns from the data while compressing, and `decompress` repeats that.
    streams : int, optional
        Rows of the batch that a block is cut into, 1..65535: more are faster but compress less. By default 64 with a
        model that does not learn, otherwise 2.
    hidden : int
        Units of the network without `model`: more are slower but compress more.
    learns : bool
        Whether a copy of the given model learns from what it has encoded (dynamic evaluation).

    Returns
    -------
    bytes
        Bit-identical on every CPU and with any number of threads.
    """
    parts = (data[start : start + BLOCK] for start in range(0, len(data), BLOCK))
    return b"".join(compressed(parts, description(model, streams, hidden, learns), model))


def decompress(data: bytes, model: TextModel | None = None) -> bytes:
    """Return the data that `compress` compressed.

    Raises
    ------
    ValueError
        The data is damaged, or the model is not the one that compressed it.
    """
    found = []
    for part in decompressed(data, model):
        if isinstance(part, Damage):
            raise ValueError(f"decompress: file is damaged: {described(part)}")
        found.append(part)
    return b"".join(found)


def described(damage: Damage) -> str:
    """Describe a lost part in words."""
    first, count, why = damage
    if count == 0:
        return why
    start = f"from byte {first * BLOCK:,} on"
    if count is None:
        return f"block {first} ({start}) and all later ones: {why}"
    if count == 1:
        return f"block {first} ({start}): {why}"
    return f"blocks {first} to {first + count - 1} ({start}): {why}"
