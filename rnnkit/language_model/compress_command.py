"""The commands compress and decompress."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rnnkit.common import archive
from rnnkit.common.console import CommandError, progress_bar
from rnnkit.language_model import compressor
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.console import check_distinct_files
from rnnkit.language_model.container import Damage

SUFFIX = ".rnk"
logger = logging.getLogger("rnnkit")


def compress(args: argparse.Namespace) -> None:
    """Compress a file into another one; the original stays."""
    source, out = Path(args.file), Path(args.out or f"{args.file}{SUFFIX}")
    model = _model("compress", args, out)
    if model is None and args.learn:
        raise CommandError("compress: --learn goes only with --model; without --model the model always learns")
    if model is not None and args.hidden is not None:
        raise CommandError("compress: --hidden goes only without --model, got both: the model sets its units")
    how = compressor.description(model, args.streams, args.hidden or compressor.HIDDEN, args.learn)
    began = time.perf_counter()
    with archive.open_regular("compress", source) as file:
        size = os.fstat(file.fileno()).st_size
        with _bar(args, size) as bar, archive.replacing("compress", out) as target:
            written = 0
            for part in compressor.compressed(_blocks(file, source), how, model, bar.update if bar else int):
                written += target.write(part)
            read = file.tell()
    seconds = time.perf_counter() - began
    bits = f", {8 * written / read:.3f} bits per byte" if read else ""
    print(f"saved     {out}: {written:,} bytes for {read:,}{bits}, {read / 1e3 / seconds:.1f} kB/s")


def _blocks(file: Any, source: Path) -> Iterator[bytes]:
    while block := _read(file, source, compressor.BLOCK):
        yield block


def _read(file: Any, source: Path, size: int = -1) -> bytes:
    try:
        return file.read(size)
    except OSError as error:  # names the file that was read, not the one that is being written
        raise CommandError(f"{source}: {error.strerror}") from error


def decompress(args: argparse.Namespace) -> None:
    """Decompress a file into another one; the compressed file stays."""
    source = Path(args.file)
    if not args.out and source.suffix != SUFFIX:
        raise CommandError(f"decompress: FILE must end with {SUFFIX} without --out, got {source}")
    out = Path(args.out or source.with_suffix(""))
    model = _model("decompress", args, out)
    began, size, lost = time.perf_counter(), 0, 0
    with archive.open_regular("decompress", source) as file:
        data = _read(file, source)
    with _bar(args, None) as bar, archive.replacing("decompress", out) as target:
        for part in compressor.decompressed(data, model, bar.update if bar else int):
            if isinstance(part, Damage):
                _report(args, source, part)
                lost += 1
                continue
            size += target.write(part)
    print(f"saved     {out}: {size:,} bytes, {size / 1e3 / (time.perf_counter() - began):.1f} kB/s")
    if lost:
        raise CommandError(f"decompress: {source} is damaged; the parts listed above are missing from {out}")


def _report(args: argparse.Namespace, source: Path, damage: Damage) -> None:
    """Log what is lost; raise unless --salvage was given."""
    found = f"{source}: {compressor.described(damage)}"
    if not args.salvage:
        raise CommandError(f"decompress: {found}; --salvage writes the undamaged blocks")
    logger.warning("%s", found)


def _model(command: str, args: argparse.Namespace, out: Path) -> textmodel.TextModel | None:
    """Check the paths before the work begins, and load the model if one was given."""
    archive.check_target(out)
    read = [("FILE", args.file)] + ([("--model", args.model)] if args.model else [])
    check_distinct_files(command, [("--out", out)], read)
    if out.exists() and not args.force:
        raise CommandError(f"{command}: --out {out} already exists; give --force to overwrite it")
    return textmodel.load(args.model) if args.model else None


def _bar(args: argparse.Namespace, total: int | None) -> Any:
    """Return a progress bar on a terminal, else nothing."""
    shown = not args.quiet and sys.stderr.isatty() and find_spec("tqdm")
    return progress_bar(total=total, unit="B", unit_scale=True) if shown else nullcontext()
