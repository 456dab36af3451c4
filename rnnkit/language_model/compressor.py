"""Compression of files with a given model, or with one that starts from random weights and learns."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np

import rnnkit
from rnnkit.cells import LayerNormLSTM
from rnnkit.errors import message, wrong_type
from rnnkit.language_model import container
from rnnkit.language_model.coding import MIN_ROW, Coder, digest
from rnnkit.language_model.container import Damage
from rnnkit.language_model.model import TextModel

BLOCK = container.MAX_BLOCK_BYTES
"""Bytes of data in a block."""
CHUNK = 16  # steps between two updates of a model that learns
STREAMS_PRETRAINED, STREAMS = 64, 2
HIDDEN, EMBEDDING = 256, 64
MAX_STREAMS = (1 << 16) - 1  # largest number of its field
# A file decides how much memory its decoder takes. These bounds keep that below 4 GB, in `compress`, too: else it could
# write what `decompress` refuses.
MAX_HIDDEN = 4096  # a model of 0.3 GB; with its gradient, the optimizer and packed weights 1.5 GB
MAX_BATCH_BYTES = 1 << 30  # of what a batch keeps for its gradient: 4096 rows of 256 units, 286 of 4096
MAX_EXPANSION = 5700  # bytes of data in a byte of payload: a byte takes at least log2(2**18 / (2**18 - 255)) bits
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
    def unpack(cls, data: bytes) -> Description:
        """Return the description in these bytes; raise ValueError unless `description` makes such ones."""
        if len(data) != _FIELDS.size:
            raise _refusal(f"describe a model in {_FIELDS.size} bytes", str(len(data)))
        found = cls(*_FIELDS.unpack(data))
        for name, allowed in _allowed(found.given).items():
            value = getattr(found, name)
            if value not in allowed:
                numbers = f"{allowed[0]}..{allowed[-1]}" if len(allowed) > 2 else " or ".join(map(str, allowed))
                raise _refusal(f"describe a model with {name} {numbers}", str(value))
        return found._replace(given=bool(found.given))

    def coder(self, model: TextModel | None, progress: Callable[[int], object]) -> Coder:
        """Return a coder with these settings; a given model is not changed."""
        own = _untrained(self.hidden, self.embedding) if model is None else model
        if self.chunk and model is not None:
            own = model.copy()
        return Coder(own, self.streams, self.chunk, progress)


def _allowed(given: int) -> dict[str, Sequence[int]]:
    """Return the numbers that each field of a description may have."""
    return {
        "given": (0, 1),
        "streams": range(1, MAX_STREAMS + 1),
        "chunk": (0, CHUNK) if given else (CHUNK,),
        "hidden": (0,) if given else range(1, MAX_HIDDEN + 1),
        "embedding": (0,) if given else (EMBEDDING,),
    }


def _desc(hidden: int, embedding: int) -> rnnkit.RNNDescriptor:
    return rnnkit.RNNDescriptor(LayerNormLSTM(), embedding, hidden)


def _untrained(hidden: int, embedding: int) -> TextModel:
    return TextModel.random(_desc(hidden, embedding), seed=0)


def _check_rows(desc: rnnkit.RNNDescriptor, how: Description, refusal: Callable[[int], Exception]) -> None:
    """Raise a refusal, built from the most streams that are possible, if a batch of a whole block takes too much."""

    def nbytes(rows: int) -> int:
        return rnnkit.workspace_nbytes(desc.evaluating, how.chunk or 1, rows)

    if nbytes(min(how.streams, container.MAX_BLOCK_BYTES // MIN_ROW)) > MAX_BATCH_BYTES:
        raise refusal(bisect_right(range(1, how.streams), MAX_BATCH_BYTES, key=nbytes))


def description(
    model: TextModel | None = None, streams: int | None = None, hidden: int = HIDDEN, learns: bool = False
) -> Description:
    """Return settings for a given model, which may learn, or for a new one of `hidden` units, which always does.

    Raises
    ------
    TypeError, ValueError
        `streams` or `hidden` is out of its range, or a batch of so many rows would take too much memory.
    """
    chunk = CHUNK if model is None or learns else 0
    if streams is None:
        streams = STREAMS if chunk else STREAMS_PRETRAINED
    checked = [("streams", streams, MAX_STREAMS)] + ([("hidden", hidden, MAX_HIDDEN)] if model is None else [])
    for name, value, high in checked:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise wrong_type("compress", name, "an int", value)
        if not 1 <= value <= high:
            raise ValueError(message("compress", name, "be at least 1" if value < 1 else f"be at most {high}", value))
    how = Description(model is not None, streams, chunk, *((hidden, EMBEDDING) if model is None else (0, 0)), b"")
    desc = _desc(hidden, EMBEDDING) if model is None else model.desc

    def refusal(most: int) -> ValueError:
        return ValueError(message("compress", "streams", f"be at most {most} with this network", streams))

    _check_rows(desc, how, refusal)
    return how._replace(digest=digest(model or _untrained(hidden, EMBEDDING)))


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
    if how.given and model is None:
        raise ValueError(message("decompress", "model", f"have digest {how.digest.hex()}", "none", "give --model"))
    if model is not None and not how.given:
        raise ValueError("decompress: model must not be given: the file was compressed without one")
    desc = _desc(how.hidden, how.embedding) if model is None else model.desc
    _check_rows(desc, how, lambda most: _refusal(f"have at most {most} streams for its model", str(how.streams)))
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
        is_possible = block.size <= MAX_EXPANSION * len(block.payload)
        text = coder.decode(block.payload, block.size) if is_possible and block.size else b""
        if zlib.crc32(text) == block.crc and len(text) == block.size:
            yield text
            continue
        why = "it decodes to wrong data" if is_possible else f"{len(block.payload)} bytes cannot hold {block.size}"
        yield Damage(block.number, None if how.chunk else 1, why)
        if how.chunk:
            return


def compress(
    data: bytes,
    model: TextModel | None = None,
    *,
    streams: int | None = None,
    hidden: int = HIDDEN,
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
        Units of the network without `model`, 1..4096: more are slower but compress more.
    learns : bool
        Whether a copy of the given model learns from what it has encoded (dynamic evaluation).

    Returns
    -------
    bytes
        Bit-identical on every CPU and with any number of threads.

    Raises
    ------
    TypeError, ValueError
        `streams` or `hidden` is out of its range, or a batch of so many rows would take more than 1 GiB.
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
