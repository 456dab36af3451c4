"""`rnnkit export`: `Network.export_c` for a saved network."""

from __future__ import annotations

import argparse
from typing import Any

import rnnkit
from rnnkit.cells import CellError, Relu, Sigmoid, Softplus, Tanh
from rnnkit.commands.cells import PLACE, named_cell
from rnnkit.common.console import CommandError, Parser

_ACTIVATIONS = {"sigmoid": Sigmoid(), "tanh": Tanh(), "relu": Relu(), "softplus": Softplus()}


def add_options(parser: Parser) -> None:
    """Add the options of the command."""
    parser.description = "Write a saved network as C files that compute the same bits."
    parser.add_argument("file", metavar="FILE", help="of net.save")
    parser.add_argument("--cell", metavar="CELL", help=f"of the network, if it is your own: {PLACE}")
    parser.add_argument("folder", metavar="FOLDER", help="gets NAME.c, NAME.h and NAME_test.c")
    parser.add_argument(
        "--name", default="model", help="name of the files, and start of the names in C (default: model)"
    )
    parser.add_argument(
        "--readout", metavar="ARRAY", help="array of the file with the weights of a dense layer after it"
    )
    parser.add_argument("--activation", choices=_ACTIVATIONS, help="of the readout's outputs")
    parser.add_argument("--precision", choices=["int8"], help="quantize the weights")
    parser.add_argument(
        "--weights", choices=["source", "binary"], default="source", help="in the source, or in NAME.bin"
    )
    parser.add_argument("--check", action="store_true", help="compile the test with CC or cc, and run it")
    parser.set_defaults(run=export)


def export(args: argparse.Namespace) -> None:
    """Write the files, and print their names."""
    activation = None if args.activation is None else _ACTIVATIONS[args.activation]
    net = rnnkit.load(args.file, cell=_cell(args.cell))
    for path in net.export_c(
        args.folder,
        args.name,
        readout=args.readout,
        activation=activation,
        precision=args.precision,
        weights=args.weights,
        check=args.check,
    ):
        print(path)
    if args.check:
        print("all bits are those of rnnkit")


def _cell(place: str | None) -> Any:
    """Return the class of a cell that is named on the command line."""
    if place is None:
        return None
    try:
        found = named_cell("export", "--cell", place)
    except CellError as error:
        raise CommandError(str(error)) from error
    return found if isinstance(found, type) else type(found)
