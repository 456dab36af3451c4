"""The settings of a training run: one table for the command line, configuration files and saved runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any, get_args

from rnnkit import RNNDescriptor, cells
from rnnkit.common.console import number
from rnnkit.errors import message
from rnnkit.types import Mode

_CELLS = {"lstm": ("RegularizedLSTM", "LayerNormLSTM"), "gru": ("RegularizedGRU", "LayerNormGRU")}
MODES: tuple[str, ...] = get_args(Mode)
BUDGETS = ("steps", "minutes", "epochs")  # a run has one of these
NETWORK = "network (with --init-from, the one of the model)"  # titles of groups of options
BUDGET = "length of the training (one of these)"
TRAINING = "training"


def option(default: Any, group: str, text: str, parse: Callable[[str], Any], **more: Any) -> Any:
    """Declare a setting with its metadata for the command line."""
    return field(default=default, metadata={"group": group, "help": text, "type": parse, **more})


def flag(text: str) -> bool:
    """Parse the text of an option without a value, from a file."""
    if text not in ("True", "False"):
        raise ValueError(text)
    return text == "True"


_NOISE = "in training (LSTM and GRU)"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that, with the text and the number of ranks, determine the trained weights."""

    mode: str = option("lstm", NETWORK, "kind of cell", str, choices=MODES)
    layers: int = option(1, NETWORK, "layers", number(int, 1))
    hidden: int = option(256, NETWORK, "units in a layer", number(int, 1))
    embedding: int = option(64, NETWORK, "size of the embedding of a byte", number(int, 1))
    dropout: float = option(
        0.1, NETWORK, "share of each layer's outputs dropped in training", number(float, 0, 1), metavar="P"
    )
    layer_norm: bool = option(False, NETWORK, "layer normalization (LSTM and GRU)", flag)
    recurrent_dropout: float = option(
        0.0, NETWORK, f"share of the candidates dropped in a step {_NOISE}", number(float, 0, 1), metavar="P"
    )
    zoneout: float = option(
        0.0, NETWORK, f"share of the units that keep their state in a step {_NOISE}", number(float, 0, 1), metavar="P"
    )
    steps: int | None = option(4250, BUDGET, "number of updates", number(int, 1))
    minutes: float | None = option(None, BUDGET, "training time, including compilation", number(float, 0, above=True))
    epochs: float | None = option(None, BUDGET, "passes over the text", number(float, 0, above=True))
    batch: int = option(16, TRAINING, "rows of text in a batch, over all ranks", number(int, 1))
    accumulate: int = option(1, TRAINING, "gradient accumulation: parts of the rows of each rank", number(int, 1))
    seq_len: int = option(
        64, TRAINING, "bytes of each row in a step (truncated backpropagation)", number(int, 1)
    )
    lr: float = option(5e-3, TRAINING, "peak learning rate", number(float, 0, above=True), metavar="RATE")
    weight_decay: float = option(
        0.0, TRAINING, "decoupled: a step multiplies weights by 1 - rate*SHARE", number(float, 0), metavar="SHARE"
    )
    clip: float = option(1.0, TRAINING, "maximum norm of the gradient", number(float, 0, above=True), metavar="NORM")
    seed: int = option(0, TRAINING, "seed of weights and dropout: the same seed gives the same model", number(int, 0))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """Return settings from valid options; a given budget replaces the default one."""
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
        """The mode, or the cell of the mode with layer normalization or noise. Raises ValueError if there is none."""
        noise = {"recurrent_dropout": self.recurrent_dropout, "zoneout": self.zoneout}
        if not self.layer_norm and not any(noise.values()):
            return self.mode
        if self.mode not in _CELLS:
            cure = "--layer-norm, --recurrent-dropout and --zoneout need one of these"
            raise ValueError(message("train", "--mode", "be lstm or gru", self.mode, cure))
        return getattr(cells, _CELLS[self.mode][self.layer_norm])(**noise)

    @staticmethod
    def of_cell(mode: Any) -> dict[str, Any]:
        """Return the settings for a model's cell, without its noise; raise ValueError if train has no such cell."""
        name = mode if isinstance(mode, str) else type(mode).__name__
        for known, kinds in _CELLS.items():
            if name in kinds and not isinstance(mode, str):
                return {"mode": known, "layer_norm": name == kinds[True]}
        if name not in MODES:
            raise ValueError(f"the cell {name}, which train does not have")
        return {"mode": name, "layer_norm": False}

    @property
    def budget(self) -> tuple[str, float]:
        """The name of the budget, and its amount."""
        ((name, amount),) = [(name, amount) for name in BUDGETS if (amount := getattr(self, name)) is not None]
        return name, amount

    def to_json(self) -> str:
        """Return the settings as JSON; `from_json` takes the parsed object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, found: Any) -> Settings:
        """Return the settings in a parsed JSON object; raise ValueError if they are invalid."""
        known = {one.name: one for one in fields(cls)}
        if not isinstance(found, dict) or found.keys() != known.keys():
            raise ValueError(f"{str(found)[:400]} and not {', '.join(known)}")
        wrong = [f"{name}={str(value)[:400]}" for name, value in found.items() if not fits(known[name], value)]
        if wrong:
            raise ValueError(", ".join(wrong))
        if sum(found[name] is not None for name in BUDGETS) != 1:
            raise ValueError(", ".join(f"{name}={found[name]}" for name in BUDGETS))
        return cls(**found)


def fits(one: Field, value: Any) -> bool:
    """Return whether a value from JSON has the type of its field and is in its range."""
    kind, parse = str(one.type), one.metadata["type"]
    if kind.startswith("list"):
        return isinstance(value, list) and all(_holds(parse, element) for element in value)
    if value is None:
        return kind.endswith("None")
    return _holds(parse, value) and value in one.metadata.get("choices", [value])


def _holds(parse: Callable[[str], Any], value: Any) -> bool:
    """Return whether the parser of the command line gives the same value for its text."""
    try:
        return parse(str(value)) == value
    except (ValueError, argparse.ArgumentTypeError):
        return False
