"""Measure size and speed of compressors: `python -m perf.compression FILE... [--ways 64x16,256x2] [--model M]`

A way is the number of units and streams of the network. Each output is decompressed and compared. The general
compressors run with their strongest settings: they gain nothing from more time. Compilation is not timed.
"""

from __future__ import annotations

import argparse
import bz2
import lzma
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rnnkit.language_model import model as textmodel
from rnnkit.language_model.compressor import compress, decompress

WAYS = "64x16,128x4,256x2,512x2"
_ZSTD = ["zstd", "--quiet", "--stdout"]


class Compressor(NamedTuple):
    """A name, and functions that compress and decompress."""

    name: str
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes], bytes]


def general() -> Iterator[Compressor]:
    """Yield those that are in the standard library, and zstd where it is installed."""
    yield Compressor("zlib -9", partial(zlib.compress, level=9), zlib.decompress)
    yield Compressor("bz2 -9", bz2.compress, bz2.decompress)
    yield Compressor("xz -9e", partial(lzma.compress, preset=9 | lzma.PRESET_EXTREME), lzma.decompress)
    if shutil.which("zstd"):
        yield Compressor("zstd -19", partial(_piped, [*_ZSTD, "-19"]), partial(_piped, [*_ZSTD, "--decompress"]))


def _piped(command: list[str], data: bytes) -> bytes:
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def own(ways: str, path: str | None) -> Iterator[Compressor]:
    """Yield rnnkit in these ways, and with a model that is given."""
    for way in ways.split(",") if ways else ():
        hidden, streams = map(int, way.split("x"))
        name = f"rnnkit, {hidden} units, {streams} streams"
        yield Compressor(name, partial(compress, hidden=hidden, streams=streams), decompress)
    if path is not None:
        model = textmodel.load(path)
        back = partial(decompress, model=model)
        yield Compressor("rnnkit, a given model", partial(compress, model=model), back)
        yield Compressor("rnnkit, a given model that learns", partial(compress, model=model, learns=True), back)


def measured(compressor: Compressor, data: bytes) -> str:
    """Return a row of the table; raise ValueError if decompression does not restore the file."""
    compressor.decompress(compressor.compress(data[:2000]))  # compiles
    began = time.perf_counter()
    code = compressor.compress(data)
    middle = time.perf_counter()
    if compressor.decompress(code) != data:
        raise ValueError(f"{compressor.name}: something else came back")
    speeds = (f"{len(data) / 1e3 / seconds:,.1f}" for seconds in (middle - began, time.perf_counter() - middle))
    return f"| {compressor.name} | {8 * len(code) / len(data):.3f} | {' | '.join(speeds)} |"


def main() -> None:
    """Print a table for each file."""
    parser = argparse.ArgumentParser(prog="python -m perf.compression", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--ways", default=WAYS, help=f"units and streams (default: {WAYS})")
    parser.add_argument("--model", help="a model that rnnkit train has written")
    args = parser.parse_args()
    for path in args.files:
        data = path.read_bytes()
        print(f"{path.name}, {len(data):,} bytes\n\n| | bits per byte | kB/s | kB/s, decoding |\n|---|---|---|---|")
        for compressor in (*general(), *own(args.ways, args.model)):
            print(measured(compressor, data), flush=True)
        print()


if __name__ == "__main__":
    main()
