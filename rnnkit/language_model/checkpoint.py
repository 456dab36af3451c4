"""Files of a run that is under way: a model's file with all that the run needs to go on."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from rnnkit import archive
from rnnkit.descriptor import RNNDescriptor
from rnnkit.language_model.model import State, TextModel, read_model, read_object
from rnnkit.language_model.settings import Settings
from rnnkit.language_model.training import Run, optimizer_of
from rnnkit.training import Adam

RUN, OPTIMIZER, STATE = "run", "optimizer_", "state_"  # names of members, and beginnings of names
CHECKS = {"int": int, "float": float, "str": str, "list": list, "float | None": (float, NoneType)}  # out of JSON


@dataclass
class Record:
    """What a file says of a run, beside arrays."""

    settings: Settings
    files: list  # of str, of the text, as absolute paths; empty: the Python standard library
    source: str  # of the text, in words
    text: str  # digest of the text, the held-out part included
    num_ranks: int = 1
    step: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    best_bits: float | None = None  # by validation
    best_step: int = 0
    kept: list = field(default_factory=list)  # steps of the files that are kept


class Checkpoint(NamedTuple):
    """What a file holds."""

    record: Record
    model: TextModel
    optimizer: Adam
    state: State


def digest(text: bytes) -> str:
    """Return what tells a text from others."""
    return sha256(text).hexdigest()


def members(run: Run, record: Record, state: State) -> dict[str, Any]:
    """Return what a file of the run holds beside its model, by name."""
    about = vars(record) | {"settings": json.loads(record.settings.to_json())}
    states = {STATE + name: array for name, array in state._asdict().items() if array is not None}
    optimizer = {OPTIMIZER + name: array for name, array in run.optimizer.state.items()}
    return {RUN: json.dumps(about)} | states | optimizer


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a file of a run.

    Raises
    ------
    OSError
        The file cannot be opened.
    ValueError
        The file is damaged, or holds something else; a finished model, say.  Nothing in it is ever unpickled.
    """
    with archive.opened("load", path) as file:
        model = read_model(file)
        if RUN not in file.names():
            cure = "a finished run is a model alone: go on from its weights with --init-from"
            raise file.refusal("hold a run that is under way", f"none; {cure}")
        record = _read_record(file)
        desc = record.settings.desc
        if desc != model.desc:
            raise file.refusal(f"hold a run of {model.desc}, its network", f"one of {desc}")
        optimizer = optimizer_of(model, record.settings)
        states, own = zeros(desc, record), optimizer.state
        file.require((*(STATE + name for name in states), *(OPTIMIZER + name for name in own)))
        state = State(**{name: file.array_like(STATE + name, like) for name, like in states.items()})
        optimizer.restore({name: file.array_like(OPTIMIZER + name, array) for name, array in own.items()})
    return Checkpoint(record, model, optimizer, state)


def zeros(desc: RNNDescriptor, record: Record) -> dict[str, np.ndarray]:
    """Return states of the shapes that the rows of a run have, by name."""
    sizes = {"hx": desc.output_size} | ({"cx": desc.hidden_size} if desc.has_cell else {})
    batch = record.settings.batch
    return {name: np.zeros((desc.num_layers, batch, size), desc.np_dtype) for name, size in sizes.items()}


def _read_record(file: archive.Reader) -> Record:
    found, expected = read_object(file, RUN), fields(Record)
    if found.keys() != {one.name for one in expected}:
        raise file.refusal(f"hold {RUN} with {', '.join(one.name for one in expected)}", ", ".join(found)[:400])
    for one in expected[1:]:
        if not isinstance(found[one.name], CHECKS[one.type]):
            raise file.refusal(f"hold {RUN} with {one.name} of type {one.type}", str(found[one.name])[:400])
    try:
        return Record(**found | {"settings": Settings.from_json(found["settings"])})
    except ValueError as error:
        raise file.refusal("hold settings that a run may have", error) from error


class Saver:
    """Writes a run's files: the newest under its own name, some older ones and the best one beside it.

    Parameters
    ----------
    out : Path
        The newest.
    keep : int
        How many of the newest also have a name with their step, and stay.
    """

    def __init__(self, out: Path, keep: int):
        self.out, self._keep = out, keep

    @property
    def best(self) -> Path:
        """The model with the fewest bits on the validation text."""
        return self._beside("best")

    def save(self, run: Run, record: Record, state: State) -> None:
        """Write the run's file; an older one that is kept has its step in its name."""
        record.step, record.seconds, record.first_seconds = run.step, run.seconds, run.first_seconds
        before = record.kept
        if self._keep:
            record.kept = [*(step for step in before if step < run.step), run.step][-self._keep :]
        archive.write(self.out, run.model.members() | members(run, record, state))
        if self._keep:
            self._link(self._beside(f"step{run.step}"))
        for step in set(before) - set(record.kept):
            self._beside(f"step{step}").unlink(missing_ok=True)

    def _beside(self, what: str) -> Path:
        return self.out.with_name(f"{self.out.stem}-{what}{self.out.suffix}")

    def _link(self, name: Path) -> None:
        """A second name for the newest file, which stays when that is replaced."""
        with suppress(FileNotFoundError):
            name.unlink()
        try:
            os.link(self.out, name)
        except OSError:  # a file system without
            shutil.copyfile(self.out, name)
