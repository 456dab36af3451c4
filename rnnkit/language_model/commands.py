"""The commands sample, score and plot."""

from __future__ import annotations

import argparse
import os
import sys
from itertools import islice

from rnnkit.common.pictures import checked_picture, write_picture
from rnnkit.language_model import corpus, sampling, scoring
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.console import check_distinct_files
from rnnkit.plot import training


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
    out = checked_picture("plot", "--out", args.out)
    check_distinct_files("plot", [("--out", out)], [("LOG", path) for path in args.logs])
    write_picture("plot", out, training(args.logs, args.x))
    print(f"saved     {out}")
