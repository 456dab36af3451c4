"""The command line: train a byte-level language model, write text with one, and compile the kernels ahead."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np

import rnnkit
from rnnkit import archive, warmup
from rnnkit.descriptor import HOST_DTYPES, MODES
from rnnkit.language_model import corpus, sampling, scoring, training
from rnnkit.language_model import model as textmodel

# Not filled in by argparse: with --init-from the model has its own, and what is given all the same is refused.
NETWORK_DEFAULTS = {"mode": "lstm", "layers": 1, "hidden": 256, "embedding": 64}

SOURCE_LENGTH = 1000  # of the names of the files that a model was trained on, which it keeps


class CommandError(Exception):
    """What was asked for cannot be done; the message says why and what would help."""


class Parser(argparse.ArgumentParser):
    """One line for an error, without the usage."""

    def error(self, message: str) -> None:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    args = build_parser().parse_args(arguments)
    _show_what_is_logged()
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
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (CommandError, ValueError, MemoryError) as error:
        return _fail(str(error) or type(error).__name__)
    return 0


def _show_what_is_logged() -> None:
    """On stderr: that a first call compiles, say."""
    logger = logging.getLogger("rnnkit")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("rnnkit: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def _fail(why: str) -> int:
    print(f"rnnkit: {why}", file=sys.stderr)
    return 2


def train(args: argparse.Namespace) -> None:
    """Train a model, save it, and print what it makes of the held-out text beside general compressors."""
    # The threads of NumPy's BLAS go on spinning after a product, on the cores that the engine needs: with them a step
    # of the default network took 22 ms, without them 15 ms. One thread also means the same bits on any machine size.
    with _extra("train", "threadpoolctl").threadpool_limits(1, "blas"):
        _train(args)


def _train(args: argparse.Namespace) -> None:
    out = Path(args.out)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise CommandError(f"train: --out must name a file in a folder that exists, got {out}")
    archive.check_target(out)  # as after the training, which would be lost then
    progress_bar = _progress_bar("train", args)
    model = _starting_model(args)
    text, _, held_out = corpus.split(corpus.read_files(args.files) if args.files else corpus.library_source())
    if not held_out:
        raise CommandError(f"train: text must have at least 20 bytes, so that one can be held out, got {len(text)}")
    rows = corpus.rows(text, args.batch, args.seq_len)
    settings = training.Settings(args.steps, args.seq_len, args.lr, args.clip, args.seed)
    source = textwrap.shorten(", ".join(args.files), SOURCE_LENGTH) or "the Python standard library"
    print(f"text      {source}: {len(text):,} bytes to train on, {len(held_out):,} held out")
    print(f"model     {model.desc}, {model.parameters.flat.size:,} parameters with embedding and output")
    if args.init_from:
        print(f"from      {args.init_from}, trained with {model.trained_with}")
    with training.interruptible() as interrupted:
        print("training  Ctrl-C ends it early; the model is saved and scored all the same", flush=True)
        steps, speed = _run(model, rows, settings, progress_bar, interrupted)
    if not np.isfinite(model.parameters.flat).all():  # the loss of the last update is not seen
        raise CommandError("train: the weights must stay finite, got others in the last step; give a lower --lr")
    model.trained_with = {"text": source, "batch": args.batch} | asdict(settings) | {"steps": steps}
    model.save(out)
    print(f"speed     {speed}")
    print(f"saved     {out}")
    print("held-out bits per byte", flush=True)
    print(f"  {scoring.bits_per_byte(model, held_out, text):6.3f}  rnnkit")
    print(f"  {corpus.order0_bits(held_out):6.3f}  order-0 entropy")
    print(f"  {corpus.zlib_bits(held_out):6.3f}  zlib -9")
    print(f"  {corpus.lzma_bits(held_out, text):6.3f}  lzma, given the training text first")


def sample(args: argparse.Namespace) -> None:
    """Write the prompt and what the model goes on with."""
    model = textmodel.load(args.model)
    prompt = os.fsencode(args.prompt or "")
    out = sys.stdout.buffer
    out.write(prompt)
    # Without a prompt the model starts as after the end of a line.
    text = sampling.generate(model, prompt or b"\n", args.temperature, args.seed)
    for byte in islice(text, args.bytes):
        out.write(bytes([byte]))
        if byte == ord("\n"):
            out.flush()


def warm_up(args: argparse.Namespace) -> None:
    """Compile the kernels, or find them compiled, and say where they are kept."""
    descs = list(warmup.networks(args.mode or MODES, args.dtype or HOST_DTYPES))
    with _progress_bar("warmup", args)(total=len(descs), unit="network") as bar:
        for desc in descs:
            if bar is not None:
                bar.set_postfix_str(f"{desc.mode} {desc.dtype}")
            warmup.compile_kernels(desc)
            if bar is not None:
                bar.update()
    from rnnkit.kernels.machine.jit import FOLDER  # which brings Numba

    size = sum(path.stat().st_size for path in Path(FOLDER.path).glob("*")) if Path(FOLDER.path).is_dir() else 0
    print(f"kernels   {FOLDER.path}, {size / 1e6:.1f} MB")


def _extra(command: str, name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        cure = f"install it with: pip install {name}"
        raise CommandError(f"{command}: {name} must be installed, got none; {cure}") from None


def _progress_bar(command: str, args: argparse.Namespace) -> Callable:
    """What makes a progress bar, above which is written what is logged meanwhile; with --quiet None, as a context."""
    if args.quiet:
        return lambda **options: nullcontext()
    bar, redirect = _extra(command, "tqdm").tqdm, import_module("tqdm.contrib.logging").logging_redirect_tqdm

    @contextmanager
    def shown(**options):
        with bar(**options) as result, redirect([logging.getLogger("rnnkit")]):
            yield result

    return shown


def _starting_model(args: argparse.Namespace) -> textmodel.TextModel:
    given = {name: getattr(args, name) for name in NETWORK_DEFAULTS if getattr(args, name) is not None}
    if args.init_from and given:
        name, value = next(iter(given.items()))
        raise CommandError(f"train: --{name} must be left out with --init-from, whose model has its own, got {value}")
    if args.init_from:
        model = textmodel.load(args.init_from)
        desc = model.desc if args.dropout is None else replace(model.desc, dropout=args.dropout)
        model = textmodel.TextModel(desc, model.alphabet, model.parameters, model.trained_with)
    else:
        shape = NETWORK_DEFAULTS | given
        sizes = shape["embedding"], shape["hidden"], shape["layers"]
        desc = rnnkit.RNNDescriptor(shape["mode"], *sizes, dropout=args.dropout or 0.0)
        model = textmodel.TextModel.random(desc, args.seed)
    if desc.dropout and desc.num_layers == 1:
        cure = "it acts between layers: give --layers 2 or more"
        raise CommandError(f"train: --dropout must be 0 with one layer, got {desc.dropout}; {cure}")
    return model


def _run(model, rows: np.ndarray, settings: training.Settings, progress_bar, interrupted) -> tuple[int, str]:
    """Train until all steps are done or Ctrl-C was pressed; return the steps done and how fast they went, in words."""
    step_bytes = settings.seq_len * rows.shape[1]
    total = settings.steps * step_bytes
    mean_bits = None
    start = time.perf_counter()
    with (
        progress_bar(total=total, unit="B", unit_scale=True) as bar,
        np.errstate(over="ignore", invalid="ignore"),  # the loss tells, once and with the cure
    ):
        for step, nats in enumerate(training.train(model, rows, settings), 1):
            if not math.isfinite(nats):
                raise CommandError(f"train: the loss must stay finite, got {nats} in step {step}; give a lower --lr")
            if step == 1:
                first = time.perf_counter()
            if bar is not None:
                bits = nats / math.log(2)
                mean_bits = bits if mean_bits is None else 0.98 * mean_bits + 0.02 * bits
                bar.set_postfix_str(f"{mean_bits:.2f} bits/byte", refresh=False)
                bar.update(step_bytes)
            if interrupted():
                break
    speed = f"first step {first - start:.1f} s, compilation included"
    if step > 1:
        rate = (step - 1) * step_bytes / (time.perf_counter() - first)
        speed = f"{rate:,.0f} bytes/s over {step - 1:,} steps; {speed}"
    return step, speed


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(prog="rnnkit", description="Train a byte-level language model with rnnkit, and write text with it.")
    parser.add_argument("--version", action="version", version=f"rnnkit {rnnkit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_train(commands)
    _add_sample(commands)
    _add_warmup(commands)
    return parser


def _add_train(commands) -> None:
    about = (
        "Train a model on text. The last 5 % of the text, at most 256 KiB, are held out and scored at the end, beside "
        "general compressors. Ctrl-C ends training early: the model is saved and scored all the same."
    )
    parser = commands.add_parser("train", help="train a model on text and write it to a file", description=about)
    parser.set_defaults(run=train)
    files = "text, one file after the other; none: the source of the Python standard library"
    parser.add_argument("files", nargs="*", metavar="FILE", help=files)
    _option(parser, "--out", str, "model.npz", "model file to write", "MODEL")
    _option(parser, "--init-from", str, None, "go on from this model, with a new schedule of the rate", "MODEL")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")

    group = parser.add_argument_group("network, with --init-from that of the model")
    mode = f"kind of cell (default: {NETWORK_DEFAULTS['mode']})"
    group.add_argument("--mode", choices=MODES, help=mode)
    for name, text in (("layers", "layers"), ("hidden", "units in a layer"), ("embedding", "features of a byte")):
        _option(group, f"--{name}", _number(int, 1), None, f"{text} (default: {NETWORK_DEFAULTS[name]})")
    _option(group, "--dropout", _number(float, 0, 1), None, "share dropped between layers (default: 0)", "P")

    group = parser.add_argument_group("training")
    _option(group, "--steps", _number(int, 1), 2600, "updates")
    _option(group, "--batch", _number(int, 1), 16, "rows of text read side by side")
    _option(group, "--seq-len", _number(int, 1), 64, "bytes of each row in a step; gradients reach no further back")
    _option(group, "--lr", _number(float, 0, above=True), 5e-3, "highest learning rate of Adam", "RATE")
    _option(group, "--clip", _number(float, 0, above=True), 1.0, "longest gradient", "NORM")
    _option(group, "--seed", _number(int, 0), 0, "of weights and dropout: the same seed, the same model")


def _add_sample(commands) -> None:
    about = "Write text with a model, byte by byte."
    parser = commands.add_parser("sample", help="write text with a model", description=about)
    parser.set_defaults(run=sample)
    parser.add_argument("model", metavar="MODEL", help="file that train has written")
    _option(parser, "--bytes", _number(int, 0), 1000, "how many to write after the prompt")
    _option(parser, "--prompt", str, None, "text to write first and go on from", "TEXT")
    _option(parser, "--temperature", _number(float, 0), 0.7, "0: always the likeliest byte; 1: as learned", "T")
    _option(parser, "--seed", _number(int, 0), None, "the same seed, the same text; none: a new text each time")


def _add_warmup(commands) -> None:
    about = "Compile the kernels ahead of the first call, and keep them on disk: for a container's image, say."
    parser = commands.add_parser("warmup", help="compile the kernels ahead of the first call", description=about)
    parser.set_defaults(run=warm_up)
    parser.add_argument("--mode", action="append", choices=MODES, help="of this mode; may be repeated (default: all)")
    text = "for arrays of this dtype; may be repeated (default: both)"
    parser.add_argument("--dtype", action="append", choices=HOST_DTYPES, help=text)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _option(group, name: str, kind: Callable, default, text: str, metavar: str = "N") -> None:
    text = text if default is None else f"{text} (default: {default})"
    group.add_argument(name, type=kind, default=default, metavar=metavar, help=text)


def _number(kind: type, low: float, high: float = math.inf, above: bool = False) -> Callable[[str], float]:
    """Return an argparse type: a finite number from `low` (or above it) to `high`, or an int that counts."""
    bounds = f"{'above' if above else 'at least'} {low}" + (f" and at most {high}" if math.isfinite(high) else "")

    def parse(text: str) -> float:
        value = kind(text)
        if not low <= value <= high or value == math.inf or (above and value == low):  # refuses NaN too
            raise argparse.ArgumentTypeError(f"must be {bounds}, got {text}")
        if value > sys.maxsize and kind is int:
            raise argparse.ArgumentTypeError(f"must be at most {sys.maxsize}, got {text}")
        return value

    parse.__name__ = kind.__name__  # argparse says "invalid int value" by it
    return parse

