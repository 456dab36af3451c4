"""Files compressed by what a model predicts: one that is given, or one that begins with random weights and learns."""

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
"""Bytes that a block stands for."""
CHUNK = 16  # steps between two updates
STREAMS_OF_GIVEN, STREAMS = 64, 2
HIDDEN, EMBEDDING = 256, 64
MAX_STREAMS = (1 << 16) - 1  # what the field holds
MAX_HIDDEN = 4096  # a model of 0.3 GB: a small file of a stranger can ask for no more
_FIELDS = Struct("<B4H16s")


class Description(NamedTuple):
    """How a file was encoded."""

    given: bool  # whether the user gave the model; hidden and embedding are 0 then
    streams: int
    chunk: int  # steps between two updates; 0: the model does not learn
    hidden: int
    embedding: int
    digest: bytes  # of the model before its first update

    def pack(self) -> bytes:
        """Return it as bytes."""
        return _FIELDS.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Description | None:
        """Return the description that these bytes are, or None."""
        if len(data) != _FIELDS.size:
            return None
        given, *others = _FIELDS.unpack(data)
        found = cls(bool(given), *others)
        learns = 0 < found.hidden <= MAX_HIDDEN and found.embedding == EMBEDDING and found.chunk
        is_right = given < 2 and found.streams and (found.given or learns)
        return found if is_right else None

    def coder(self, model: TextModel | None, seen: Callable[[int], object]) -> Coder:
        """Return what encodes and decodes so; a given model is not changed."""
        own = _untrained(self.hidden, self.embedding) if model is None else model
        if self.chunk and model is not None:
            own = model.copy()
        return Coder(own, self.streams, self.chunk, seen)


def _untrained(hidden: int, embedding: int) -> TextModel:
    return TextModel.random(rnnkit.RNNDescriptor(LayerNormLSTM(), embedding, hidden), seed=0)


def description(
    model: TextModel | None = None, streams: int | None = None, hidden: int = HIDDEN, learns: bool = False
) -> Description:
    """Return how to encode: with a given model, which may learn, or with one of so many units that always does."""
    if model is None:
        first = digest(_untrained(hidden, EMBEDDING))
        return Description(False, streams or STREAMS, CHUNK, hidden, EMBEDDING, first)
    default = STREAMS if learns else STREAMS_OF_GIVEN
    return Description(True, streams or default, CHUNK if learns else 0, 0, 0, digest(model))


def compressed(
    data: Iterable[bytes], how: Description, model: TextModel | None = None, seen: Callable[[int], object] = int
) -> Iterator[bytes]:
    """Yield a compressed file in parts: of blocks of bytes, each at least one and at most `container.MOST_BYTES`.

    `seen` is told how many bytes have been read since it was told last.
    """
    yield container.start(how.pack())
    coder, count, size = how.coder(model, seen), 0, 0
    for block in data:
        yield container.block(count, block, coder.encode(block))
        count, size = count + 1, size + len(block)
    yield container.end(count, size)


def decompressed(
    data: bytes, model: TextModel | None = None, seen: Callable[[int], object] = int
) -> Iterator[bytes | Damage]:
    """Yield the blocks of a compressed file in order, and a `Damage` in the place of each part that is lost.

    Raises
    ------
    ValueError
        The file is of another kind, its beginning is damaged, or the model is not the one that it was made with.
    """
    found, place = container.read_start(data, _refusal)
    how = Description.unpack(found)
    if how is None:
        raise _refusal("describe a model", "something else")
    if how.given and model is None:
        raise ValueError(message("decompress", "model", f"have digest {how.digest.hex()}", "none", "give --model"))
    if model is not None and not how.given:
        raise ValueError(message("decompress", "model", "not be given", "one", "the file was made without"))
    coder = how.coder(model, seen)
    own = digest(model or coder.model)
    if own != how.digest:
        cure = "" if how.given else "the file was made by another version of rnnkit"
        raise ValueError(message("decompress", "model", f"have digest {how.digest.hex()}", own.hex(), cure))
    return _blocks(data, place, coder, how)


def _refusal(expected: str, actual: str) -> ValueError:
    return ValueError(message("decompress", "file", expected, actual))


def _blocks(data: bytes, place: int, coder: Coder, how: Description) -> Iterator[bytes | Damage]:
    for block in container.blocks(data, place):
        if isinstance(block, Damage):
            ends = how.chunk and block.count != 0  # what comes was encoded by a model that had learned from this
            yield block._replace(count=None) if ends else block
            if ends:
                return
            continue
        text = coder.decode(block.payload, block.size) if block.size else b""
        if zlib.crc32(text) == block.crc:
            yield text
            continue
        yield Damage(block.number, None if how.chunk else 1, "it decodes to something else")
        if how.chunk:
            return


def compress(
    data: bytes, model: TextModel | None = None, *, streams: int | None = None, hidden: int = HIDDEN,
    learns: bool = False,
) -> bytes:
    """Return bytes compressed by what a model predicts.

    Parameters
    ----------
    data : bytes
    model : TextModel, optional
        What predicts; it is not changed, and `decompress` needs it. Without one a network with random weights learns
        from the bytes as they come, and its decoder does the same.
    streams : int, optional
        Rows that are read side by side, 1..65535: more are faster and take more bits. By default 64 with a model that
        does not learn, otherwise 2.
    hidden : int
        Units of the network that learns, without a model: more are slower and take fewer bits.
    learns : bool
        Whether a given model learns from what it has encoded.

    Returns
    -------
    bytes
        The same on every CPU and any number of threads.
    """
    parts = (data[start : start + BLOCK] for start in range(0, len(data), BLOCK))
    return b"".join(compressed(parts, description(model, streams, hidden, learns), model))


def decompress(data: bytes, model: TextModel | None = None) -> bytes:
    """Return the bytes that `compress` was given.

    Raises
    ------
    ValueError
        The data is damaged, or the model is another one.
    """
    found = []
    for part in decompressed(data, model):
        if isinstance(part, Damage):
            raise _refusal("be whole", described(part))
        found.append(part)
    return b"".join(found)


def described(damage: Damage) -> str:
    """Return what is lost, in words."""
    first, count, why = damage
    if count == 0:
        return why
    start = f"from byte {first * BLOCK:,} on"
    if count is None:
        return f"block {first} ({start}) and those behind it: {why}"
    if count == 1:
        return f"block {first} ({start}): {why}"
    return f"blocks {first} to {first + count - 1} ({start}): {why}"
