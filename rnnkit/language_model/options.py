"""The options of the commands: each function adds those of one command to its parser."""

from __future__ import annotations

import argparse
from dataclasses import fields
from itertools import groupby
from typing import get_args

from rnnkit.common.console import Parser, add_option, file_name, number
from rnnkit.language_model import commands, compress_command, compressor
from rnnkit.language_model.settings import DEFAULTS, Options, Settings, flag
from rnnkit.language_model.train_command import train
from rnnkit.types import Precision


def add_train(parser: Parser) -> None:
    parser.description = (
        "Train a model on text. The last 5 % of the text, at most 256 KiB, are held out: they score the model and "
        "general-purpose compressors at the end. A quarter as much text before them is for validation. Ctrl-C and "
        "SIGTERM save the run; --resume continues it, bit-identical to a run without interruption. Under mpiexec the "
        "rows of a step are split over all ranks."
    )
    parser.argument_default = argparse.SUPPRESS
    parser.set_defaults(run=lambda args: train(args, add_train_options))
    config = "file of options by name; options of the command line take precedence"
    parser.add_argument("--config", type=file_name, metavar="FILE.toml", help=config)
    add_train_options(parser)


def add_train_options(parser: Parser) -> None:
    """Add the options that the command line and a configuration file share."""
    files = "text files, which are concatenated (default: the source of the Python standard library)"
    parser.add_argument("files", nargs="*", type=file_name, metavar="FILE", help=files)
    for title, options in groupby((*fields(Options), *fields(Settings)), lambda one: one.metadata["group"]):
        group = parser.add_argument_group(title)
        for one in options:
            about, name = one.metadata, f"--{one.name.replace('_', '-')}"
            default = "" if one.default is None else f" (default: {one.default})"
            if about["type"] is flag:
                group.add_argument(name, action="store_true", help=about["help"])
                continue
            how = {"choices": about["choices"]} if "choices" in about else {"metavar": about["metavar"]}
            text = (about["help"] + default).replace("%", "%%")
            group.add_argument(name, type=about["type"], help=text, **how)


def add_sample(parser: Parser) -> None:
    parser.description = "Generate text with a model, byte by byte."
    parser.set_defaults(run=commands.sample)
    parser.add_argument("model", type=file_name, metavar="MODEL", help="model saved by train")
    add_option(parser, "--bytes", number(int, 0), 1000, "number of bytes after the prompt")
    add_option(parser, "--prompt", str, None, "text to continue; it is printed first", "TEXT")
    add_option(parser, "--temperature", number(float, 0), 0.7, "0: always the most likely byte; 1: as learned", "T")
    share = "nucleus sampling: use only the most likely bytes, with this total probability"
    add_option(parser, "--top-p", number(float, 0, 1, above=True), 1.0, share, "P")
    seed = "the same seed gives the same text (default: a new text each time)"
    add_option(parser, "--seed", number(int, 0), None, seed)
    _add_precision(parser, "quantize the network's weights (default: no)")


def add_score(parser: Parser) -> None:
    parser.description = (
        "Print the bits per byte of files under a model, without and with dynamic evaluation, and of compressors."
    )
    parser.set_defaults(run=commands.score)
    parser.add_argument("files", nargs="+", type=file_name, metavar="FILE", help="any file")
    add_option(parser, "--model", file_name, DEFAULTS["out"], "model saved by train", "MODEL")
    _add_precision(parser, "also score the model with quantized weights")


def add_compress(parser: Parser) -> None:
    parser.description = (
        "Compress a file with the predictions of a model. Without --model the model starts from random weights and "
        "learns from the file while compressing; decompress repeats that. The result is bit-identical on every CPU and "
        "with any number of threads."
    )
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


def add_decompress(parser: Parser) -> None:
    parser.description = "Decompress a file of rnnkit compress."
    parser.set_defaults(run=compress_command.decompress)
    parser.add_argument("file", type=file_name, metavar="FILE", help="file of rnnkit compress")
    suffix = compress_command.SUFFIX
    _add_output(parser, f"file to write (default: FILE without {suffix})", "the model that compress used")
    text = "if the file is damaged, write its undamaged blocks; if the model learns, only those before the damage"
    parser.add_argument("--salvage", action="store_true", help=text)


def _add_output(parser: Parser, out: str, model: str) -> None:
    parser.add_argument("-o", "--out", type=file_name, metavar="FILE", help=out)
    parser.add_argument("--model", type=file_name, metavar="MODEL", help=model)
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def _add_precision(parser: Parser, about: str) -> None:
    parser.add_argument("--precision", choices=get_args(Precision), help=about)


def add_plot(parser: Parser) -> None:
    parser.description = "Plot training and validation bits per byte of one or several runs."
    parser.set_defaults(run=commands.plot)
    parser.add_argument("logs", nargs="+", type=file_name, metavar="LOG", help="log file of train --log")
    parser.add_argument("-o", "--out", type=file_name, required=True, metavar="PNG", help="image to write")
    parser.add_argument("--x", choices=("bytes", "steps", "minutes"), default="bytes", help="x axis (default: bytes)")
