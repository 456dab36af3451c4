"""Options of a run from a TOML file and the command line."""

from __future__ import annotations

import argparse
import difflib
import tomllib
from collections.abc import Callable
from typing import Any

from rnnkit.common import archive
from rnnkit.common.console import CommandError, Parser
from rnnkit.language_model.settings import BUDGETS, KINDS, NUMBER, flag


def parsed(add_options: Callable[[Parser], None], args: argparse.Namespace) -> dict[str, Any]:
    """Merge the options of a TOML file and the command line, which takes precedence.

    Parameters
    ----------
    add_options : callable
        Adds the options to a parser.
    args : Namespace
        Only the options given on the command line, without defaults.
    """
    given = vars(args).copy()
    path = given.get("config")
    if path is None:
        return given
    parser = Parser(prog=path, argument_default=argparse.SUPPRESS, add_help=False)
    parser.command = "rnnkit train"
    add_options(parser)
    config = vars(parser.parse_args(_arguments(path, parser)))
    if any(name in given for name in BUDGETS):
        config = {name: value for name, value in config.items() if name not in BUDGETS}
    return config | given


def _arguments(path: str, parser: Parser) -> list[str]:
    """Return the entries of a file as arguments, so that the parser checks them like those of the command line."""
    with archive.naming(path), open(path, "rb") as file:
        try:
            found = tomllib.load(file)
        except (ValueError, RecursionError) as error:
            raise CommandError(f"train: --config must be a TOML file, got {path}: {error}") from None
    actions = {action.dest: action for action in parser._actions}
    arguments: list[str] = []
    files: list[str] = []
    for key, value in found.items():
        action = actions.get(key.replace("-", "_"))
        if action is None:
            near = difflib.get_close_matches(key.replace("-", "_"), actions, 1)
            cure = f"; did you mean {near[0]}?" if near else f"; known keys are {', '.join(sorted(actions))}"
            raise CommandError(f"train: --config {path} has an unknown key {key}{cure}")
        (arguments if action.option_strings else files).extend(_argument(path, key, value, action))
    return [*arguments, "--", *files] if files else arguments  # a file's name may begin with a dash


def _argument(path: str, key: str, value: Any, action: argparse.Action) -> list[str]:
    values = value if action.nargs == "*" and isinstance(value, list) else [value]
    expected, types = KINDS.get(flag if action.nargs == 0 else action.type, NUMBER)
    if not all(type(one) in types for one in values):
        raise CommandError(f"train: --config {path}: {key} must be {expected}, got {value!r}"[:400])
    if action.nargs == 0:
        return list(action.option_strings[:1]) if value else []
    return [f"{action.option_strings[0]}={one}" if action.option_strings else one for one in values]
