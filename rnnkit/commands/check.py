"""`rnnkit check`: `rnnkit.check_cell` for a cell in a file or a module."""

from __future__ import annotations

import argparse

import rnnkit
from rnnkit.cells import CellError
from rnnkit.commands.cells import PLACE, named_cell
from rnnkit.common.console import CommandError, Parser, add_option, number


class WrongCell(CommandError):
    """The cell has a fault."""

    status = 1


def add_options(parser: Parser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Check the gradients of a cell against finite differences, and its values against its equations, as "
        "rnnkit.check_cell does. The exit status is 0 if the cell is right, 1 if it is wrong, 2 for other errors."
    )
    parser.set_defaults(run=check)
    parser.add_argument("cell", metavar="CELL", help=PLACE)
    add_option(parser, "--seed", number(int, 0), 0, "seed of the random inputs")


def check(args: argparse.Namespace) -> None:
    """Print the comparison of each gradient of a cell; raise if one is wrong."""
    try:
        cell = named_cell("check", "CELL", args.cell)
        report = rnnkit.check_cell(cell, args.seed)
    except CellError as error:
        raise WrongCell(str(error)) from error
    except TypeError as error:  # not a cell, or one whose parameters have no defaults
        raise CommandError(str(error)) from error
    print(f"cell      {args.cell}: gradients agree with finite differences, values with the equations")
    print(report)
