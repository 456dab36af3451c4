"""The command line: its parser, and its exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import groupby
from typing import Any, get_args

import rnnkit
from rnnkit.common import startup
from rnnkit.descriptor.descriptor import HOST_DTYPES, MODES
from rnnkit.language_model import commands, compress_command, compressor
from rnnkit.language_model.console import (
    USER_ERRORS,
    CommandError,
    Interrupted,
    Parser,
    error_text,
    exiting_signals,
    log_to_stderr,
)
from rnnkit.language_model.every import Every
from rnnkit.language_model.job import DEFAULTS
from rnnkit.language_model.settings import Settings, file_name, flag, number
from rnnkit.language_model.train_command import train
from rnnkit.types import Precision


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 2 for an error, or 128 plus the number of a signal.

    SystemExit is raised for wrong arguments, --help and --version, and by SIGTERM and SIGHUP.
    """
    try:
        startup.end()
        sys.stderr = sys.stderr or open(os.devnull, "w")  # None if the shell has closed it
        args = build_parser().parse_args(arguments)
        log_to_stderr()
        if sys.stdout is None:
            raise CommandError("standard output must be open, got a closed one; redirect it to /dev/null")
        with exiting_signals():
            args.run(args)
            sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads the output any more; the rest of the buffer must not raise again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("rnnkit: interrupted", file=sys.stderr)
        return 130
    except Interrupted as end:
        return 128 + end.number
    except USER_ERRORS as error:
        with suppress(OSError):  # a full disk
            print(f"rnnkit: {error_text(error)}", file=sys.stderr)
        return 2
    return 0


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(prog="rnnkit", description="Train a byte-level language model with rnnkit, and use it.")
    parser.set_defaults(run=lambda args: parser.print_help())
    parser.add_argument("--version", action="version", version=f"rnnkit {rnnkit.__version__}")
    adders = parser.add_subparsers(metavar="COMMAND")
    for add in (_add_train, _add_sample, _add_score, _add_compress, _add_decompress, _add_plot, _add_warmup):
        add(adders)
    return parser


def _add_train(adders) -> None:
    about = (
        "Train a model on text. The last 5 % of the text, at most 256 KiB, are held out: they score the model and "
        "general-purpose compressors at the end. A quarter as much text before them is for validation. Ctrl-C and "
        "SIGTERM save the run; --resume continues it, bit-identical to a run without interruption. Under mpiexec the "
        "rows of a step are split over all ranks."
    )
    parser = adders.add_parser(
        "train", help="train a model on text and write it to a file", description=about,
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(run=lambda args: train(args, add_train_options))
    config = "file of options by name; options of the command line take precedence"
    parser.add_argument("--config", type=file_name, metavar="FILE.toml", help=config)
    add_train_options(parser)


def add_train_options(parser: Parser) -> None:
    """Add the options that the command line and a configuration file share."""
    files = "text files, which are concatenated (default: the source of the Python standard library)"
    parser.add_argument("files", nargs="*", type=file_name, metavar="FILE", help=files)
    group = parser.add_argument_group("input and output")
    _option(group, "--out", file_name, DEFAULTS["out"], "file to write; with --resume the same file", "MODEL")
    _option(group, "--resume", file_name, None, "resume the interrupted run in this file, bit-identically", "MODEL")
    warm = "start a new run from this model's weights: optimizer, schedule and position in the text start anew"
    _option(group, "--init-from", file_name, None, warm, "MODEL")
    interval = "EVERY is a number of steps, a time like 30s, 10m, 2h, or a share of the run like 5%%"
    _option(group, "--save-every", Every, DEFAULTS["save_every"], f"save the run; {interval}", "EVERY")
    keep = "newest saves to keep; above 0, the best model is kept, too"
    _option(group, "--keep", number(int, 0), DEFAULTS["keep"], keep, "K")
    group.add_argument("--quiet", action="store_true", help="show no progress")
    _option(group, "--validate-every", Every, DEFAULTS["validate_every"], "score the validation text", "EVERY")
    _option(group, "--sample-every", Every, None, "print a text generated by the model", "EVERY")
    _option(group, "--log", file_name, None, "write training curves as CSV, for rnnkit plot", "FILE.csv")
    _option(group, "--log-every", Every, DEFAULTS["log_every"], "write a row of the log", "EVERY")
    for title, settings in groupby(fields(Settings), lambda one: one.metadata["group"]):
        group = parser.add_argument_group(title)
        for one in settings:
            about = one.metadata
            default = "" if one.default is None else f" (default: {one.default})"
            how = {"choices": about["choices"]} if "choices" in about else {"metavar": about.get("metavar", "N")}
            option = f"--{one.name.replace('_', '-')}"
            if about["type"] is flag:
                group.add_argument(option, action="store_true", help=about["help"])
                continue
            group.add_argument(option, type=about["type"], help=about["help"].replace("%", "%%") + default, **how)


def _add_sample(adders) -> None:
    about = "Generate text with a model, byte by byte."
    parser = adders.add_parser("sample", help="generate text with a model", description=about)
    parser.set_defaults(run=commands.sample)
    parser.add_argument("model", type=file_name, metavar="MODEL", help="model saved by train")
    _option(parser, "--bytes", number(int, 0), 1000, "number of bytes after the prompt")
    _option(parser, "--prompt", str, None, "text to continue; it is printed first", "TEXT")
    _option(parser, "--temperature", number(float, 0), 0.7, "0: always the most likely byte; 1: as learned", "T")
    share = "nucleus sampling: use only the most likely bytes, with this total probability"
    _option(parser, "--top-p", number(float, 0, 1, above=True), 1.0, share, "P")
    _option(parser, "--seed", number(int, 0), None, "the same seed gives the same text (default: a new text each time)")
    _add_precision(parser, "quantize the network's weights (default: no)")


def _add_score(adders) -> None:
    about = "Print the bits per byte of files under a model, without and with dynamic evaluation, and of compressors."
    parser = adders.add_parser("score", help="score files with a model", description=about)
    parser.set_defaults(run=commands.score)
    parser.add_argument("files", nargs="+", type=file_name, metavar="FILE", help="any file")
    _option(parser, "--model", file_name, DEFAULTS["out"], "model saved by train", "MODEL")
    _add_precision(parser, "also score the model with quantized weights")


def _add_compress(adders) -> None:
    about = (
        "Compress a file with the predictions of a model. Without --model the model starts from random weights and "
        "learns from the file while compressing; decompress repeats that. The result is bit-identical on every CPU and "
        "with any number of threads."
    )
    parser = adders.add_parser("compress", help="compress a file", description=about)
    parser.set_defaults(run=compress_command.compress)
    parser.add_argument("file", type=file_name, metavar="FILE", help="any file")
    model = "model saved by train (default: a new model that learns from the file)"
    _add_output(parser, f"file to write (default: FILE{compress_command.SUFFIX})", model)
    learn = "dynamic evaluation: a copy of that model learns from the file"
    parser.add_argument("--learn", action="store_true", help=learn)
    streams = "parts of a block to process at once: more are faster but compress less (default: "
    default = f"{compressor.STREAMS}, {compressor.STREAMS_PRETRAINED} with a model that does not learn)"
    parser.add_argument("--streams", type=number(int, 1, compressor.MAX_STREAMS), metavar="N", help=streams + default)
    hidden = f"units of the model without --model: more are slower but compress more (default: {compressor.HIDDEN})"
    parser.add_argument("--hidden", type=number(int, 1, compressor.MAX_HIDDEN), metavar="N", help=hidden)


def _add_decompress(adders) -> None:
    about = "Decompress a file of rnnkit compress."
    parser = adders.add_parser("decompress", help="decompress a file", description=about)
    parser.set_defaults(run=compress_command.decompress)
    parser.add_argument("file", type=file_name, metavar="FILE", help="file of rnnkit compress")
    suffix = compress_command.SUFFIX
    _add_output(parser, f"file to write (default: FILE without {suffix})", "the model that compress used")
    text = "if the file is damaged, write its undamaged blocks; if the model learns, only those before the damage"
    parser.add_argument("--salvage", action="store_true", help=text)


def _add_output(parser, out: str, model: str) -> None:
    parser.add_argument("-o", "--out", type=file_name, metavar="FILE", help=out)
    parser.add_argument("--model", type=file_name, metavar="MODEL", help=model)
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def _add_precision(parser, about) -> None:
    parser.add_argument("--precision", choices=get_args(Precision), help=about)


def _add_plot(adders) -> None:
    about = "Plot training and validation bits per byte of one or several runs."
    parser = adders.add_parser("plot", help="plot the curves of logs", description=about)
    parser.set_defaults(run=commands.plot)
    parser.add_argument("logs", nargs="+", type=file_name, metavar="LOG", help="log file of train --log")
    parser.add_argument("-o", "--out", type=file_name, required=True, metavar="PNG", help="image to write")
    parser.add_argument("--x", choices=("bytes", "steps", "minutes"), default="bytes", help="x axis (default: bytes)")


def _add_warmup(adders) -> None:
    about = (
        "Compile the kernels ahead of the first call and cache them on disk, for example in a container image. Custom "
        "cells and those of rnnkit.cells are not included: call such a network once."
    )
    parser = adders.add_parser("warmup", help="compile the kernels ahead of the first call", description=about)
    parser.set_defaults(run=commands.warm_up)
    parser.add_argument("--mode", action="append", choices=MODES, help="only this mode; may be repeated (default: all)")
    text = "only this dtype; may be repeated (default: both)"
    parser.add_argument("--dtype", action="append", choices=HOST_DTYPES, help=text)
    text = "also for float32 plans with these quantized weights; may be repeated (default: none)"
    parser.add_argument("--precision", action="append", choices=get_args(Precision), help=text)
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def _option(group, name: str, kind: Callable, default: Any, text: str, metavar: str = "N") -> None:
    """Add an option. The parser of `train` has no defaults, so that it returns only given options."""
    text = text if default is None else f"{text} (default: {str(default).replace('%', '%%')})"
    given = {} if getattr(group, "argument_default", None) is argparse.SUPPRESS else {"default": default}
    group.add_argument(name, type=kind, metavar=metavar, help=text, **given)
