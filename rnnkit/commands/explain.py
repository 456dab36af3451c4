"""`rnnkit explain`: `rnnkit.explain` for a network of one of the modes."""

from __future__ import annotations

import argparse
from typing import get_args

import rnnkit
from rnnkit.cells import CellError
from rnnkit.commands.cells import PLACE, named_cell
from rnnkit.common.console import CommandError, Parser, add_option, file_name, number
from rnnkit.common.pictures import checked_picture, write_picture
from rnnkit.errors import message
from rnnkit.types import Mode


def add_options(parser: Parser) -> None:
    """Add the options of the command."""
    parser.description = "Print how calls of one size run on this machine: route, threads, memory and operations."
    modes = ", ".join(get_args(Mode))
    parser.add_argument("mode", metavar="MODE", help=f"one of {modes}, or a cell: {PLACE}")
    for name, about in (("input_size", "I"), ("hidden_size", "H"), ("T", "steps"), ("N", "sequences")):
        parser.add_argument(name, type=number(int, 0 if name in "TN" else 1), metavar=name.upper(), help=about)
    add_option(parser, "--layers", number(int, 1), 1, "number of layers")
    parser.add_argument("--bidirectional", action="store_true", help="run both directions")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="default: float32")
    plot = "measure the calls, and draw their time and threads; needs Matplotlib"
    parser.add_argument("--plot", type=file_name, metavar="FILE.png", help=plot)
    parser.set_defaults(run=explain)


def explain(args: argparse.Namespace) -> None:
    """Print the explanation, and draw it."""
    path = checked_picture("explain", "--plot", args.plot) if args.plot else None
    if path is not None and not args.T * args.N:
        raise CommandError(f"explain: --plot needs at least one step of one sequence, got T={args.T}, N={args.N}")
    if ":" not in args.mode and args.mode not in get_args(Mode):
        expected = f"be one of {', '.join(get_args(Mode))}, or FILE.py:CLASS of a cell"
        raise CommandError(message("explain", "MODE", expected, repr(args.mode)))
    sizes = args.input_size, args.hidden_size, args.layers, args.bidirectional
    try:
        mode = named_cell("explain", "MODE", args.mode) if ":" in args.mode else args.mode
        desc = rnnkit.RNNDescriptor(mode, *sizes, dtype=args.dtype)
    except (CellError, TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    print(rnnkit.explain(desc, args.T, args.N))
    if path is not None:
        from rnnkit import plot

        write_picture("explain", path, plot.explanation(desc, args.T, args.N))
        print(f"saved     {path}")
