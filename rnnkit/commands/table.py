"""The table of commands. A new command is a line here, and a function that adds its options to a parser."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from rnnkit.common.console import Parser


class Command(NamedTuple):
    """A command, whose module is imported when the command is called."""

    name: str
    about: str
    place: str  # "module:function"; it adds description, options and the default `run`, a function of the arguments

    def add_options(self, parser: Parser) -> None:
        """Add all that the parser of the command needs."""
        module, _, function = self.place.partition(":")
        getattr(import_module(module), function)(parser)


_PACKAGE, _MODEL = "rnnkit.commands", "rnnkit.language_model.options"
GROUPS = {
    "commands of the package": (
        Command("warmup", "compile the kernels ahead of the first call", f"{_PACKAGE}.warmup:add_options"),
        Command("check", "check the gradients of a cell", f"{_PACKAGE}.check:add_options"),
        Command("export", "write a saved network as C", f"{_PACKAGE}.export:add_options"),
        Command("explain", "print how calls of a size run", f"{_PACKAGE}.explain:add_options"),
    ),
    "language model and compressor": (
        Command("train", "train a model on text and write it to a file", f"{_MODEL}:add_train"),
        Command("sample", "generate text with a model", f"{_MODEL}:add_sample"),
        Command("score", "score files with a model", f"{_MODEL}:add_score"),
        Command("compress", "compress a file", f"{_MODEL}:add_compress"),
        Command("decompress", "decompress a file", f"{_MODEL}:add_decompress"),
        Command("plot", "plot the curves of logs", f"{_MODEL}:add_plot"),
    ),
}
COMMANDS = {one.name: one for commands in GROUPS.values() for one in commands}
