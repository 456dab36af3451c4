"""Options of a run from its three places: a TOML file, the command line, and the defaults."""

from __future__ import annotations

import argparse
import difflib
import tomllib
from collections.abc import Callable
from typing import Any

from rnnkit.language_model.console import CommandError, Parser
from rnnkit.language_model.settings import BUDGETS


def parsed(add_options: Callable[[Parser], None], args: argparse.Namespace, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return all options that are given, or have a default: the command line's go before the file's.

    Parameters
    ----------
    add_options : callable
        Adds what may be given to a parser.
    args : Namespace
        What is given on the command line, and nothing else.
    defaults : dict
        Of options that are no settings.
    """
    given = vars(args).copy()
    path = given.pop("config", None)
    if path is None:
        return defaults | given
    parser = Parser(prog=path, argument_default=argparse.SUPPRESS, add_help=False)
    parser.command = "rnnkit train"
    add_options(parser)
    config = vars(parser.parse_args(_arguments(path, parser)))
    if any(name in given for name in BUDGETS):
        config = {name: value for name, value in config.items() if name not in BUDGETS}
    return defaults | config | given


def _arguments(path: str, parser: Parser) -> list[str]:
    """Return a file's entries as arguments, which the parser then checks as it does those of the command line."""
    with open(path, "rb") as file:
        try:
            found = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CommandError(f"train: --config must be a TOML file, got {path}: {error}") from None
    actions = {action.dest: action for action in parser._actions}
    arguments = []
    for key, value in found.items():
        action = actions.get(key.replace("-", "_"))
        if action is None:
            near = difflib.get_close_matches(key.replace("-", "_"), actions, 1)
            cure = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(actions))}"
            raise CommandError(f"train: --config must have known keys, got {key} in {path}{cure}")
        arguments += _argument(path, key, value, action)
    return arguments


def _argument(path: str, key: str, value: Any, action: argparse.Action) -> list[str]:
    values = value if action.nargs == "*" and isinstance(value, list) else [value]
    flag = action.nargs == 0
    if flag and isinstance(value, bool):
        return action.option_strings[:1] if value else []
    if flag or not all(isinstance(one, (str, int, float)) and not isinstance(one, bool) for one in values):
        expected = "true or false" if flag else "a text or a number"
        raise CommandError(f"train: --config must have {expected} for {key}, got {value!r} in {path}"[:400])
    texts = [str(one) for one in values]
    return texts if not action.option_strings else [f"{action.option_strings[0]}={text}" for text in texts]
