"""The settings of a training run: one table, which the command line, configuration files and saved runs read."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any

from rnnkit import cells
from rnnkit.descriptor.descriptor import MODES, RNNDescriptor
from rnnkit.errors import message

_CELLS = {"lstm": ("RegularizedLSTM", "LayerNormLSTM"), "gru": ("RegularizedGRU", "LayerNormGRU")}
_SINCE_0_13 = {"layer_norm", "recurrent_dropout", "zoneout"}
BUDGETS = ("steps", "minutes", "epochs")  # of which a run has one
NETWORK = "network, with --init-from that of the model"  # titles of groups
BUDGET = "how long to train, one of these"
TRAINING = "training"


def option(default: Any, group: str, text: str, parse: Callable[[str], Any], **more: Any) -> Any:
    """A field with what the command line needs to know of it."""
    return field(default=default, metadata={"group": group, "help": text, "type": parse, **more})


def file_name(text: str) -> str:
    """Parse the name of a file."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"must name a file, got {text!r}")
    return text


def number(kind: type, low: float, high: float = math.inf, above: bool = False) -> Callable[[str], float]:
    """Return what parses a finite number from `low` (or above it) to `high`, or an int that counts."""
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


def flag(text: str) -> bool:
    """Parse what a file has of an option without a value."""
    if text not in ("True", "False"):
        raise ValueError(text)
    return text == "True"


_NOISE = "in training, of an LSTM or a GRU"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides the weights that a run ends with, beside the text and the number of ranks."""

    mode: str = option("lstm", NETWORK, "kind of cell", str, choices=tuple(MODES))
    layers: int = option(1, NETWORK, "layers", number(int, 1))
    hidden: int = option(256, NETWORK, "units in a layer", number(int, 1))
    embedding: int = option(64, NETWORK, "features of a byte", number(int, 1))
    dropout: float = option(
        0.1, NETWORK, "share of each layer's outputs dropped in training", number(float, 0, 1), metavar="P"
    )
    layer_norm: bool = option(False, NETWORK, "layer-normalised cells, of an LSTM or a GRU", flag)
    recurrent_dropout: float = option(
        0.0, NETWORK, f"share of each step's candidates dropped {_NOISE}", number(float, 0, 1), metavar="P"
    )
    zoneout: float = option(
        0.0, NETWORK, f"share of the units that keep their state in a step {_NOISE}", number(float, 0, 1), metavar="P"
    )
    steps: int | None = option(4250, BUDGET, "updates", number(int, 1))
    minutes: float | None = option(None, BUDGET, "time to train, compilation included", number(float, 0, above=True))
    epochs: float | None = option(None, BUDGET, "passes over the text", number(float, 0, above=True))
    batch: int = option(16, TRAINING, "rows of text read side by side, on all ranks together", number(int, 1))
    accumulate: int = option(1, TRAINING, "parts that a rank takes its rows in, one after the other", number(int, 1))
    seq_len: int = option(
        64, TRAINING, "bytes of each row in a step; gradients reach no further back", number(int, 1)
    )
    lr: float = option(5e-3, TRAINING, "highest learning rate", number(float, 0, above=True), metavar="RATE")
    weight_decay: float = option(
        0.0, TRAINING, "share that the rate takes of each weight in a step", number(float, 0), metavar="SHARE"
    )
    clip: float = option(1.0, TRAINING, "longest gradient", number(float, 0, above=True), metavar="NORM")
    seed: int = option(0, TRAINING, "of weights and dropout: the same seed, the same model", number(int, 0))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """Return the settings with what is given, which is right in itself; a budget that is given is the only one."""
        budgets = [name for name in BUDGETS if given.get(name) is not None]
        if len(budgets) > 1:
            expected = "be one of --steps, --minutes and --epochs"
            raise ValueError(message("train", "budget", expected, ", ".join(budgets)))
        others = dict.fromkeys(BUDGETS) if budgets else {}
        return cls(**others | given)

    @property
    def desc(self) -> RNNDescriptor:
        """The network of the model."""
        return RNNDescriptor(self.cell, self.embedding, self.hidden, self.layers, dropout=self.dropout)

    @property
    def cell(self) -> Any:
        """The name of the mode, or the cell that layer norm and noise make of it. Raises ValueError."""
        noise = {"recurrent_dropout": self.recurrent_dropout, "zoneout": self.zoneout}
        if not self.layer_norm and not any(noise.values()):
            return self.mode
        if self.mode not in _CELLS:
            cure = "--layer-norm, --recurrent-dropout and --zoneout are of these"
            raise ValueError(message("train", "--mode", "be lstm or gru", self.mode, cure))
        return getattr(cells, _CELLS[self.mode][self.layer_norm])(**noise)

    @staticmethod
    def of_cell(mode: Any) -> dict[str, Any]:
        """The settings that a model's cell stands for, but for its noise; raise ValueError for any other."""
        name = mode if isinstance(mode, str) else type(mode).__name__
        for known, kinds in _CELLS.items():
            if name in kinds and not isinstance(mode, str):
                return {"mode": known, "layer_norm": name == kinds[True]}
        if name not in MODES:
            raise ValueError(f"a cell {name}, which train does not have")
        return {"mode": name, "layer_norm": False}

    @property
    def budget(self) -> tuple[str, float]:
        """The name of the budget, and how much it is."""
        ((name, amount),) = [(name, amount) for name in BUDGETS if (amount := getattr(self, name)) is not None]
        return name, amount

    def to_json(self) -> str:
        """Return them as JSON, as `from_json` takes them."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, found: Any) -> Settings:
        """Return the settings that a file holds; raise ValueError, which says why, where these are none of ours."""
        known = {one.name: one for one in fields(cls)}
        if isinstance(found, dict) and known.keys() - found.keys() == _SINCE_0_13:
            if found.get("dropout"):
                got = f"dropout={found['dropout']!s:.400} of a run from before 0.13, which drew other masks"
                raise ValueError(f"{got}; begin a new run from its weights with --init-from")
            found = found | {name: known[name].default for name in _SINCE_0_13}
        if not isinstance(found, dict) or found.keys() != known.keys():
            raise ValueError(f"{str(found)[:400]} and not {', '.join(known)}")
        wrong = [f"{name}={str(value)[:400]}" for name, value in found.items() if not fits(known[name], value)]
        if wrong:
            raise ValueError(", ".join(wrong))
        if sum(found[name] is not None for name in BUDGETS) != 1:
            raise ValueError(", ".join(f"{name}={found[name]}" for name in BUDGETS))
        return cls(**found)


def fits(one: Field, value: Any) -> bool:
    """Whether a value out of JSON is of the type of its field, and in its range."""
    kind, parse = str(one.type), one.metadata["type"]
    if kind.startswith("list"):
        return isinstance(value, list) and all(_holds(parse, element) for element in value)
    if value is None:
        return kind.endswith("None")
    return _holds(parse, value) and value in one.metadata.get("choices", [value])


def _holds(parse: Callable[[str], Any], value: Any) -> bool:
    """Whether a value out of JSON is what the command line would have made of its text."""
    try:
        return parse(str(value)) == value
    except (ValueError, argparse.ArgumentTypeError):
        return False
