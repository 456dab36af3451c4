"""A file of blocks with checksums: damaged blocks are reported, and the rest can be recovered.

All numbers are little-endian. The file begins with MAGIC, a version, the size of the coder's description, the
description, and a CRC-32 of these. Each block has a mark, its number, the sizes of its data and of its payload (the
encoded data), the CRC-32 of the payload, the CRC-32 of the data, and a CRC-32 of this header. The end block has no
payload. Its number is the count of blocks, and its two CRC fields hold the total size of the data in 64 bits.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

MAGIC, VERSION = b"RNK\x1a", 1
MAX_BLOCK_BYTES = 1 << 20
"""The most data in a block: a file cannot ask for memory by the size of its blocks."""
_START, _CRC, _BLOCK = Struct("<4sBB"), Struct("<I"), Struct("<2s5I")
_MARK, _END = b"BK", b"EN"
_MARKS = re.compile(_MARK + b"|" + _END)


class Damage(NamedTuple):
    """A part of a file that cannot be read."""

    first: int  # number of the first lost block
    count: int | None  # of lost blocks; None: unknown
    why: str


class Block(NamedTuple):
    """A block with a valid header and payload; the checksum of its data is checked after decoding."""

    number: int
    size: int  # of the data
    payload: bytes
    crc: int  # of the data


def start(description: bytes) -> bytes:
    """Return the header of a file, with a description of the coder of at most 255 bytes."""
    head = _START.pack(MAGIC, VERSION, len(description)) + description
    return head + _CRC.pack(zlib.crc32(head))


def block(number: int, data: bytes, payload: bytes) -> bytes:
    """Return the block that encodes data as payload."""
    return _head(_MARK, number, len(data), len(payload), zlib.crc32(payload), zlib.crc32(data)) + payload


def end(number: int, size: int) -> bytes:
    """Return the end of a file of `number` blocks, whose data has `size` bytes."""
    return _head(_END, number, 0, 0, size & 0xFFFFFFFF, size >> 32)


def _head(*fields: bytes | int) -> bytes:
    head = _BLOCK.pack(*fields)
    return head + _CRC.pack(zlib.crc32(head))


def read_start(data: bytes, refusal: Callable[[str, str], Exception]) -> tuple[bytes, int]:
    """Return the description of the coder, and the offset of the first block.

    Parameters
    ----------
    data : bytes
    refusal : callable
        Builds the exception to raise, from what was expected and what was found.
    """
    if data[:4] != MAGIC:
        raise refusal("begin as a file of rnnkit compress does", f"{data[:4]!r}" if data else "an empty file")
    if len(data) < _START.size:
        raise refusal("be complete", f"only {len(data)} bytes")
    _, version, size = _START.unpack_from(data)
    if version != VERSION:
        raise refusal(f"have version {VERSION} of the format", str(version))
    stop = _START.size + size
    if len(data) < stop + _CRC.size:
        raise refusal("be complete", f"only {len(data)} bytes")
    if _CRC.unpack_from(data, stop) != (zlib.crc32(data[:stop]),):
        raise refusal("have an undamaged header", "another checksum")
    return data[_START.size : stop], stop + _CRC.size


def blocks(data: bytes, place: int) -> Iterator[Block | Damage]:
    """Yield the blocks from an offset on, and a `Damage` for each lost part; a search finds the next block."""
    expected, size, whole = 0, 0, True
    while True:
        found = _find(data, place)
        if found is None:
            yield Damage(expected, None, "the file ends without an end block")
            return
        at, (mark, number, length, payload_length, crc, crc_of_data) = found
        if number != expected or at != place:
            yield Damage(expected, max(number - expected, 0), "damaged")
            whole = False
        expected, place = number + 1, at + _BLOCK.size + _CRC.size + payload_length
        if mark == _END:
            if whole and size != crc | crc_of_data << 32:
                yield Damage(number, 0, "the sizes of the blocks do not add up to the total")
            if place < len(data):
                yield Damage(number, 0, f"{len(data) - place} bytes follow the end")
            return
        payload, size = data[place - payload_length : place], size + length
        if len(payload) < payload_length:
            yield Damage(number, None, "the file ends inside this block")
            return
        if zlib.crc32(payload) == crc:
            yield Block(number, length, payload, crc_of_data)
        else:
            yield Damage(number, 1, "damaged")


def _find(data: bytes, place: int) -> tuple[int, tuple] | None:
    """Return the offset and fields of the next valid block header from an offset on."""
    for found in _MARKS.finditer(data, place):
        start, stop = found.start(), found.start() + _BLOCK.size
        if stop + _CRC.size <= len(data) and _CRC.unpack_from(data, stop) == (zlib.crc32(data[start:stop]),):
            fields = _BLOCK.unpack_from(data, start)
            if fields[2] <= MAX_BLOCK_BYTES:
                return start, fields
    return None
