"""The command line: what may be given, and how an end is reported."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any, get_args

import rnnkit
from rnnkit.descriptor.descriptor import HOST_DTYPES, MODES
from rnnkit.language_model import commands, compress_command, compressor
from rnnkit.language_model.console import REFUSALS, Interrupted, Parser, show_what_is_logged, why
from rnnkit.language_model.every import Every
from rnnkit.language_model.job import DEFAULTS
from rnnkit.language_model.settings import Settings, file_name, flag, number
from rnnkit.language_model.train_command import train
from rnnkit.types import Precision


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 2 for what cannot be done, or 128 and a signal's number."""
    args = build_parser().parse_args(arguments)
    show_what_is_logged()
    try:
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone; what is still buffered must not raise again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("rnnkit: interrupted", file=sys.stderr)
        return 130
    except Interrupted as end:
        return 128 + end.number
    except REFUSALS as error:
        print(f"rnnkit: {why(error)}", file=sys.stderr)
        return 2
    return 0


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(prog="rnnkit", description="Train a byte-level language model with rnnkit, and write text with it.")
    parser.set_defaults(run=lambda args: parser.print_help())
    parser.add_argument("--version", action="version", version=f"rnnkit {rnnkit.__version__}")
    adders = parser.add_subparsers(metavar="COMMAND")
    for add in (_add_train, _add_sample, _add_score, _add_compress, _add_decompress, _add_plot, _add_warmup):
        add(adders)
    return parser


def _add_train(adders) -> None:
    about = (
        "Train a model on text. The last 5 % of the text, at most 256 KiB, are held out and scored at the end, beside "
        "general compressors; as much as 64 KiB before them is for validation. Ctrl-C and SIGTERM save the run, which "
        "--resume goes on with, to the same bits. Under mpiexec the rows of a step are shared by all ranks."
    )
    parser = adders.add_parser(
        "train", help="train a model on text and write it to a file", description=about,
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(run=lambda args: train(args, add_train_options))
    config = "options by their names; those given here go before"
    parser.add_argument("--config", type=file_name, metavar="FILE.toml", help=config)
    add_train_options(parser)


def add_train_options(parser: Parser) -> None:
    """Add what both the command line and a configuration file may give."""
    files = "text, one file after the other; none: the source of the Python standard library"
    parser.add_argument("files", nargs="*", type=file_name, metavar="FILE", help=files)
    group = parser.add_argument_group("beginning and end")
    _option(group, "--out", file_name, DEFAULTS["out"], "file to write; with --resume that file", "MODEL")
    _option(group, "--resume", file_name, None, "go on with the run in this file, to the same bits", "MODEL")
    warm = "begin a new run from this model's weights: another optimizer state, schedule and place in the text"
    _option(group, "--init-from", file_name, None, warm, "MODEL")
    interval = "EVERY: steps, or a time as 30s, 10m, 2h, or a share of the run as 5%%"
    _option(group, "--save-every", Every, DEFAULTS["save_every"], f"save the run; {interval}", "EVERY")
    _option(group, "--keep", number(int, 0), DEFAULTS["keep"], "newest saves to keep, and the best model", "K")
    group.add_argument("--quiet", action="store_true", help="no progress")
    _option(group, "--validate-every", Every, DEFAULTS["validate_every"], "score the validation text", "EVERY")
    _option(group, "--sample-every", Every, None, "show a text that the model writes", "EVERY")
    _option(group, "--log", file_name, None, "curves to write as CSV, for rnnkit plot", "FILE.csv")
    _option(group, "--log-every", Every, DEFAULTS["log_every"], "a row of the log", "EVERY")
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
    about = "Write text with a model, byte by byte."
    parser = adders.add_parser("sample", help="write text with a model", description=about)
    parser.set_defaults(run=commands.sample)
    parser.add_argument("model", type=file_name, metavar="MODEL", help="file that train has written")
    _option(parser, "--bytes", number(int, 0), 1000, "how many to write after the prompt")
    _option(parser, "--prompt", str, None, "text to write first and go on from", "TEXT")
    _option(parser, "--temperature", number(float, 0), 0.7, "0: always the likeliest byte; 1: as learned", "T")
    share = "draw from the likeliest bytes that together have this probability"
    _option(parser, "--top-p", number(float, 0, 1, above=True), 1.0, share, "P")
    _option(parser, "--seed", number(int, 0), None, "the same seed, the same text; none: a new text each time")
    _add_precision(parser, "quantize the network's weights (default: no)")


def _add_score(adders) -> None:
    about = "Print the bits per byte that a model needs for files, beside general compressors."
    parser = adders.add_parser("score", help="score files with a model", description=about)
    parser.set_defaults(run=commands.score)
    parser.add_argument("files", nargs="+", type=file_name, metavar="FILE", help="any file")
    _option(parser, "--model", file_name, DEFAULTS["out"], "file that train has written", "MODEL")
    _add_precision(parser, "score it also with the network's weights quantized")


def _add_compress(adders) -> None:
    about = (
        "Compress a file by what a model predicts. Without --model the model begins with random weights and learns "
        "while it reads, and decompress repeats that. The result is the same on every CPU, with any number of threads."
    )
    parser = adders.add_parser("compress", help="compress a file", description=about)
    parser.set_defaults(run=compress_command.compress)
    parser.add_argument("file", type=file_name, metavar="FILE", help="any file")
    _add_output(parser, f"file to write (default: FILE{compress_command.SUFFIX})", "that train has written, to predict")
    parser.add_argument("--learn", action="store_true", help="let a copy of that model learn while it reads")
    streams = "parts of a block that are read side by side: more are faster and take more space (default: "
    default = f"{compressor.STREAMS}, {compressor.STREAMS_OF_GIVEN} with a model that does not learn)"
    parser.add_argument("--streams", type=number(int, 1, compressor.MAX_STREAMS), metavar="N", help=streams + default)
    hidden = f"units of the model that learns: more are slower and take less space (default: {compressor.HIDDEN})"
    parser.add_argument("--hidden", type=number(int, 1, compressor.MAX_HIDDEN), metavar="N", help=hidden)


def _add_decompress(adders) -> None:
    about = "Write the file that a compressed one stands for."
    parser = adders.add_parser("decompress", help="decompress a file", description=about)
    parser.set_defaults(run=compress_command.decompress)
    parser.add_argument("file", type=file_name, metavar="FILE", help="that compress has written")
    suffix = compress_command.SUFFIX
    _add_output(parser, f"file to write (default: FILE without {suffix})", "that compress was given")
    text = "write the blocks that are whole, where others are damaged; a model that learns cannot go on behind these"
    parser.add_argument("--salvage", action="store_true", help=text)


def _add_output(parser, out: str, model: str) -> None:
    parser.add_argument("-o", "--out", type=file_name, metavar="FILE", help=out)
    parser.add_argument("--model", type=file_name, metavar="MODEL", help=f"model {model}")
    parser.add_argument("--force", action="store_true", help="replace the file to write, if it is there")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_precision(parser, about) -> None:
    parser.add_argument("--precision", choices=get_args(Precision), help=about)


def _add_plot(adders) -> None:
    about = "Draw training and validation bits over the course of one or several runs."
    parser = adders.add_parser("plot", help="draw the curves of logs", description=about)
    parser.set_defaults(run=commands.plot)
    parser.add_argument("logs", nargs="+", type=file_name, metavar="LOG", help="file that train --log has written")
    parser.add_argument("-o", "--out", type=file_name, required=True, metavar="PNG", help="picture to write")
    parser.add_argument("--x", choices=("bytes", "steps", "minutes"), default="bytes", help="axis (default: bytes)")


def _add_warmup(adders) -> None:
    about = (
        "Compile the kernels ahead of the first call, and keep them on disk: for a container's image, say. Not those "
        "of cells of your own or of rnnkit.cells: call such a network once."
    )
    parser = adders.add_parser("warmup", help="compile the kernels ahead of the first call", description=about)
    parser.set_defaults(run=commands.warm_up)
    parser.add_argument("--mode", action="append", choices=MODES, help="of this mode; may be repeated (default: all)")
    text = "for arrays of this dtype; may be repeated (default: both)"
    parser.add_argument("--dtype", action="append", choices=HOST_DTYPES, help=text)
    text = "also for plans with such quantized weights, of float32; may be repeated (default: none of them)"
    parser.add_argument("--precision", action="append", choices=get_args(Precision), help=text)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _option(group, name: str, kind: Callable, default: Any, text: str, metavar: str = "N") -> None:
    """Add an option; the parser of `train` keeps what is not given apart from the defaults."""
    text = text if default is None else f"{text} (default: {str(default).replace('%', '%%')})"
    given = {} if getattr(group, "argument_default", None) is argparse.SUPPRESS else {"default": default}
    group.add_argument(name, type=kind, metavar=metavar, help=text, **given)
