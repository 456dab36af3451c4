"""The commands sample, score, plot and warmup."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

from rnnkit import warmup
from rnnkit.common import archive
from rnnkit.descriptor.descriptor import HOST_DTYPES, MODES
from rnnkit.language_model import corpus, sampling, scoring
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.console import CommandError, check_distinct_files, optional_import, progress_bar


def sample(args: argparse.Namespace) -> None:
    """Print the prompt and the model's continuation of it."""
    model = textmodel.load(args.model)
    prompt = os.fsencode(args.prompt or "")
    out, streaming = sys.stdout.buffer, sys.stdout.isatty()
    out.write(prompt)
    # Without a prompt the model starts after a newline.
    text = sampling.generate(model, prompt or b"\n", args.temperature, args.seed, args.top_p, args.precision)
    for byte in islice(text, args.bytes):
        out.write(bytes([byte]))
        if streaming or byte == ord("\n"):
            out.flush()


def score(args: argparse.Namespace) -> None:
    """Print the bits per byte of files under the model and under general-purpose compressors."""
    model = textmodel.load(args.model)
    texts = {path: corpus.read_files([path]) for path in args.files}
    for path, text in texts.items():
        print(f"{path}: {len(text):,} bytes; bits per byte")
        for name, bits in scoring.scores(model, text, precision=args.precision):
            print(f"  {bits:6.3f}  {name}", flush=True)


def plot(args: argparse.Namespace) -> None:
    """Plot the curves of logs as an image."""
    optional_import("plot", "matplotlib")
    from rnnkit.language_model import plot as pictures

    out = Path(args.out)
    if out.suffix.lower() != ".png":
        raise CommandError(f"plot: --out must end with .png, got {out}")
    archive.check_target(out)
    check_distinct_files("plot", [("--out", out)], [("LOG", path) for path in args.logs])
    figure = pictures.curves(args.logs, args.x)
    with archive.replacing("plot", out) as file:
        figure.savefig(file, format="png")
    print(f"saved     {out}")


def warm_up(args: argparse.Namespace) -> None:
    """Compile the kernels, or load them from the cache, and print its folder."""
    dtypes = args.dtype or HOST_DTYPES
    if args.precision and "float32" not in dtypes:
        raise CommandError(f"warmup: --precision needs --dtype float32, got {' '.join(dtypes)}")
    descs = list(warmup.networks(args.mode or MODES, dtypes))
    shown = False if args.quiet else optional_import("warmup", "tqdm") and sys.stderr.isatty()
    with progress_bar(total=len(descs), unit="network") if shown else nullcontext() as bar:
        for desc in descs:
            if bar is not None:
                bar.set_postfix_str(f"{desc.mode} {desc.dtype}")
            warmup.compile_kernels(desc, args.precision or () if desc.dtype == "float32" else ())
            if bar is not None:
                bar.update()
    from rnnkit_kernels.machine.jit import FOLDER  # imports Numba

    size = sum(path.stat().st_size for path in Path(FOLDER.path).glob("*")) if Path(FOLDER.path).is_dir() else 0
    print(f"kernels   {FOLDER.path}, {size / 1e6:.1f} MB")
