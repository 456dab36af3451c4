"""`rnnkit warmup`: compile kernels ahead of the first call, for example in a container image or before a benchmark."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import numpy as np

from rnnkit import RNNDescriptor, backward, forward, init_weights, prepare, training
from rnnkit.common.console import CommandError, Parser, optional_import, progress_bar
from rnnkit.types import CallPrecision, HostDType, Precision
from rnnkit_kernels.cells.modes import MODES
from rnnkit_kernels.machine.imports import imported

DTYPES = get_args(HostDType)


def add_options(parser: Parser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Compile the kernels ahead of the first call and cache them on disk, for example in a container image. Custom "
        "cells and those of rnnkit.cells are not included: call such a network once."
    )
    parser.set_defaults(run=warm_up)
    parser.add_argument("--mode", action="append", choices=MODES, help="only this mode; may be repeated (default: all)")
    text = "only this dtype; may be repeated (default: both)"
    parser.add_argument("--dtype", action="append", choices=DTYPES, help=text)
    text = (
        "also for float32 plans with these quantized weights, and training in bfloat16; may be repeated (default: none)"
    )
    parser.add_argument("--precision", action="append", choices=get_args(Precision), help=text)
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def warm_up(args: argparse.Namespace) -> None:
    """Compile the kernels, or load them from the cache, and print its folder."""
    dtypes = args.dtype or DTYPES
    if args.precision and "float32" not in dtypes:
        raise CommandError(f"warmup: --precision needs --dtype float32, got {' '.join(dtypes)}")
    descs = list(networks(args.mode or MODES, dtypes))
    shown = False if args.quiet else optional_import("warmup", "tqdm") and sys.stderr.isatty()
    with progress_bar(total=len(descs), unit="network") if shown else nullcontext() as bar:
        for desc in descs:
            if bar is not None:
                bar.set_postfix_str(f"{desc.mode} {desc.dtype}")
            compile_kernels(desc, args.precision or () if desc.dtype == "float32" else ())
            if bar is not None:
                bar.update()
    folder = Path(imported("rnnkit_kernels.machine.jit").FOLDER.path)
    size = sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
    print(f"kernels   {folder}, {size / 1e6:.1f} MB")


def networks(modes: Iterable[str], dtypes: Iterable[str]) -> Iterator[RNNDescriptor]:
    """Yield small networks that together use every kernel of these modes and dtypes.

    Parameters
    ----------
    modes, dtypes : iterable of str
        As for :class:`rnnkit.RNNDescriptor`.

    Yields
    ------
    RNNDescriptor
        Each formula of a mode: one layer, and two bidirectional layers with dropout between them.
    """
    for mode in modes:
        formulas = (True, False) if "reset_after" in MODES[mode].options else (True,)
        for reset_after in formulas:
            for dtype in dtypes:
                options = {"reset_after": reset_after, "dtype": dtype}
                yield RNNDescriptor(mode, 1, 1, **options)
                yield RNNDescriptor(mode, 1, 1, 2, True, dropout=0.5, **options)


def compile_kernels(desc: RNNDescriptor, precisions: Iterable[Precision] = ()) -> None:
    """Compile the CPU kernels for inference and training of a network, or load them from the cache on disk.

    Parameters
    ----------
    desc : RNNDescriptor
        The network, with a mode or a custom cell. The kernels do not depend on its sizes.
    precisions : iterable of {"bfloat16", "bfloat16-native", "int8"}
        Also compile plans with quantized weights of these precisions, and for "bfloat16" training.
    """
    w, x = init_weights(desc, seed=0), np.zeros((1, 2, desc.input_size), desc.np_dtype)
    # A length below T: packed rows, which threads cut into parts, and padding.
    result = forward(desc, w, x, lengths=[1, 0], seed=0)
    dw = backward(desc, w, result.workspace, result.y).dw
    training.clip_gradient_norm(dw, 1.0)
    for optimizer in (training.Adam(w), training.SGD(w), training.SGD(w, momentum=0.9)):
        optimizer.step(dw, 0.0)
    for precision in get_args(CallPrecision):
        if precision in precisions:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # that it is no faster here
                result = forward(desc, w, x, lengths=[1, 0], seed=0, precision=precision)
            backward(desc, w, result.workspace, result.y)
    for precision in (None, *precisions):
        plan = prepare(desc, w, precision=precision)
        _, hy, cy = plan.infer(x)
        if not desc.bidirectional:
            plan.step(x[0], hy, cy)
