"""A file of blocks, each with checksums of its own: what is damaged is named, and the others can still be found.

All numbers are little-endian. The file begins with MAGIC, a version, the size of what describes the coder, the
description, and a CRC-32 of all that. Each block has a mark, its number, the sizes of what it stands for and of its
payload, the CRC-32s of both, and one of these numbers. The end is a block without payload, whose number is that of the
blocks in front of it and whose two checksums are their whole size, in 64 bits.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

MAGIC, VERSION = b"RNK\x1a", 1
MOST_BYTES = 1 << 24
"""Of a block, at most."""
_START, _CRC, _BLOCK = Struct("<4sBB"), Struct("<I"), Struct("<2s5I")
_MARK, _END = b"BK", b"EN"
_MARKS = re.compile(_MARK + b"|" + _END)


class Damage(NamedTuple):
    """A part of a file that cannot be read."""

    first: int  # number of the first block that is lost
    count: int | None  # how many are; None where nobody knows
    why: str


class Block(NamedTuple):
    """A block whose checksums are right so far: of what it stands for that is seen when it is decoded."""

    number: int
    size: int
    payload: bytes
    crc: int  # of what it stands for


def start(description: bytes) -> bytes:
    """Return the beginning of a file, whose coder is described in at most 255 bytes."""
    head = _START.pack(MAGIC, VERSION, len(description)) + description
    return head + _CRC.pack(zlib.crc32(head))


def block(number: int, data: bytes, payload: bytes) -> bytes:
    """Return a block that stands for data."""
    return _head(_MARK, number, len(data), len(payload), zlib.crc32(payload), zlib.crc32(data)) + payload


def end(number: int, size: int) -> bytes:
    """Return the end of a file of so many blocks, which stand for so many bytes."""
    return _head(_END, number, 0, 0, size & 0xFFFFFFFF, size >> 32)


def _head(*fields: bytes | int) -> bytes:
    head = _BLOCK.pack(*fields)
    return head + _CRC.pack(zlib.crc32(head))


def read_start(data: bytes, refusal: Callable[[str, str], Exception]) -> tuple[bytes, int]:
    """Return what describes the coder, and where the blocks begin.

    Parameters
    ----------
    data : bytes
    refusal : callable
        Makes the exception to raise, of what the file must be and what it is.
    """
    if data[:4] != MAGIC:
        raise refusal("begin as a file of rnnkit compress does", f"{data[:4]!r}" if data else "an empty file")
    if len(data) < _START.size:
        raise refusal("be whole", f"{len(data)} bytes")
    _, version, size = _START.unpack_from(data)
    if version != VERSION:
        raise refusal(f"have version {VERSION} of the format", str(version))
    stop = _START.size + size
    if len(data) < stop + _CRC.size:
        raise refusal("be whole", f"{len(data)} bytes")
    if _CRC.unpack_from(data, stop) != (zlib.crc32(data[:stop]),):
        raise refusal("have a beginning that is as it was written", "another checksum")
    return data[_START.size : stop], stop + _CRC.size


def blocks(data: bytes, place: int) -> Iterator[Block | Damage]:
    """Yield the blocks from a place on, and a `Damage` for each part that is lost; a search finds the next block."""
    expected, size, whole = 0, 0, True
    while True:
        found = _find(data, place)
        if found is None:
            yield Damage(expected, None, "the file ends without its end")
            return
        at, (mark, number, length, payload_length, crc, crc_of_data) = found
        if number != expected or at != place:
            yield Damage(expected, max(number - expected, 0), "damaged")
            whole = False
        expected, place = number + 1, at + _BLOCK.size + _CRC.size + payload_length
        if mark == _END:
            if whole and size != crc | crc_of_data << 32:
                yield Damage(number, 0, "the blocks' sizes differ from the whole")
            if place < len(data):
                yield Damage(number, 0, f"{len(data) - place} bytes follow the end")
            return
        payload, size = data[place - payload_length : place], size + length
        if len(payload) < payload_length:
            yield Damage(number, None, "the file ends in it")
            return
        if zlib.crc32(payload) == crc:
            yield Block(number, length, payload, crc_of_data)
        else:
            yield Damage(number, 1, "damaged")


def _find(data: bytes, place: int) -> tuple[int, tuple] | None:
    """The next head of a block from a place on, and where it is."""
    for found in _MARKS.finditer(data, place):
        start, stop = found.start(), found.start() + _BLOCK.size
        if stop + _CRC.size <= len(data) and _CRC.unpack_from(data, stop) == (zlib.crc32(data[start:stop]),):
            fields = _BLOCK.unpack_from(data, start)
            if fields[2] <= MOST_BYTES:
                return start, fields
    return None
