"""Files of an unfinished run: a model with everything that is needed to resume training."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from rnnkit import RNNDescriptor
from rnnkit.common import archive
from rnnkit.common.console import file_name, number
from rnnkit.language_model import files
from rnnkit.language_model.model import State, TextModel, read_model
from rnnkit.language_model.settings import KEPT, Kept, Settings, fits
from rnnkit.language_model.training import Run, optimizer_of
from rnnkit.training import Adam

RUN, OPTIMIZER, STATE = "run", "optimizer_", "state_"  # name of a member, and prefixes of names
FINITE = number(float, -sys.float_info.max)


def entry(parse: Callable[[str], Any], **default: Any) -> Any:
    """Declare a field with the parser that an option would have; for a list, the parser of its elements."""
    return field(metadata={"type": parse}, **default)


@dataclass
class Record(Kept):
    """Metadata of a run in its file, with the options that it keeps."""

    settings: Settings
    files: list[str] = entry(file_name)  # of the text, absolute paths; empty: the Python standard library
    source: str = entry(str)  # description of the text
    text: str = entry(str)  # digest of the whole text, including the held-out part
    num_ranks: int = entry(number(int, 1), default=1)
    step: int = entry(number(int, 0), default=0)
    seconds: float = entry(number(float, 0), default=0.0)
    first_seconds: float = entry(number(float, 0), default=0.0)
    best_bits: float | None = entry(FINITE, default=None)  # by validation
    best_step: int = entry(number(int, 0), default=0)
    kept: list[int] = entry(number(int, 1), default_factory=list)  # steps of the saves that --keep has kept
    # State of the log.
    log_bits: float = entry(FINITE, default=0.0)
    log_steps: int = entry(number(int, 0), default=0)
    log_digest: str | None = entry(str, default=None)

    @property
    def options(self) -> dict[str, Any]:
        """The options that are known, by name."""
        return {name: value for name in KEPT if (value := getattr(self, name)) is not None}


class Checkpoint(NamedTuple):
    """Content of a run's file."""

    record: Record
    model: TextModel
    optimizer: Adam
    state: State


def digest(text: bytes) -> str:
    """Return the SHA-256 of a text."""
    return sha256(text).hexdigest()


def arrays(run: Run, record: Record, state: State) -> dict[str, Any]:
    """Return the arrays of a run's file besides those of its model, by name."""
    about = vars(record) | {"settings": json.loads(record.settings.to_json())}
    states = {STATE + name: array for name, array in state._asdict().items() if array is not None}
    optimizer = {OPTIMIZER + name: array for name, array in run.optimizer.state.items()}
    return {RUN: json.dumps(about)} | states | optimizer


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read the file of an unfinished run.

    Raises
    ------
    OSError
        The file cannot be opened.
    ValueError
        The file is damaged, or holds something else, for example a finished model. Nothing in it is ever unpickled.
    """
    file = files.File(path)
    model = read_model(file)
    if RUN not in file.arrays:
        cure = "to continue from its weights, use --init-from"
        raise file.refusal("hold an unfinished run", f"a finished model; {cure}")
    record = _read_record(file)
    desc = record.settings.desc
    if desc != model.desc:
        raise file.refusal(f"hold a run of its network {model.desc}", f"a run of {desc}")
    optimizer = optimizer_of(model, record.settings)
    states, own = _shapes(desc, record), optimizer.state
    file.require(*(STATE + name for name in states), *(OPTIMIZER + name for name in own))
    state = State(**{name: file.array_of(STATE + name, desc.np_dtype, shape) for name, shape in states.items()})
    optimizer.restore({name: file.array_of(OPTIMIZER + name, one.dtype, one.shape) for name, one in own.items()})
    return Checkpoint(record, model, optimizer, state)


def _shapes(desc: RNNDescriptor, record: Record) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the states of a run's rows, by name."""
    sizes = {"hx": desc.output_size} | ({"cx": desc.hidden_size} if desc.has_cell_state else {})
    return {name: (desc.num_layers, record.settings.batch, size) for name, size in sizes.items()}


def _read_record(file: files.File) -> Record:
    found, known = file.object_of(RUN), {one.name: one for one in fields(Record)}
    if found.keys() != known.keys():
        raise file.refusal(f"hold {RUN} with {', '.join(known)}", ", ".join(found)[:400])
    for name, one in known.items():
        if one.metadata and not fits(one, found[name]):
            raise file.refusal(f"hold {RUN} with a valid {name}", repr(found[name])[:400])
    try:
        return Record(**found | {"settings": Settings.from_json(found["settings"])})
    except ValueError as error:
        raise file.refusal("hold valid settings", error) from error


class Saver:
    """Writes a run's files: the newest save, some older ones, and the best model.

    Parameters
    ----------
    out : Path
        The file of the newest save. The others are in its folder, with "-step<number>" or "-best" in their names.
    keep : int
        Number of the newest saves to keep.
    """

    def __init__(self, out: Path, keep: int):
        self.out, self._keep = out, keep

    @property
    def best(self) -> Path:
        """The file of the model with the fewest bits on the validation text."""
        return self._sibling("best")

    def later(self, step: int, names: Iterable[str]) -> list[Path]:
        """Return those of the names that saves after this step may use."""
        if not self._keep:
            return []
        pattern = re.compile(rf"{re.escape(self.out.stem)}-step(\d+){re.escape(self.out.suffix)}")
        found = [(pattern.fullmatch(name), name) for name in names]
        return [self.out.with_name(name) for match, name in found if match and int(match[1]) > step]

    def save(self, run: Run, record: Record, state: State) -> None:
        """Write the run's file; with `keep`, also under a name with its step, and remove older ones."""
        record.step, record.seconds, record.first_seconds = run.step, run.seconds, run.first_seconds
        before = kept = record.kept
        if self._keep:
            kept = [*(step for step in before if step < run.step), run.step][-self._keep :]
        own = run.model.arrays() | arrays(run, replace(record, kept=kept), state)
        files.write(self.out, run.model.desc, run.model.parameters.network, own)
        if self._keep:
            self._link(self._sibling(f"step{run.step}"))
        record.kept = kept  # only now: after a save that fails, the list is unchanged
        for step in set(before) - set(kept):
            self._sibling(f"step{step}").unlink(missing_ok=True)

    def _sibling(self, what: str) -> Path:
        return self.out.with_name(f"{self.out.stem}-{what}{self.out.suffix}")

    def _link(self, name: Path) -> None:
        """Give the newest file a second name, which stays when the first is replaced."""
        newest = os.path.realpath(self.out)  # not the symbolic link, which would follow the newest
        with suppress(FileNotFoundError):
            name.unlink()
        try:
            os.link(newest, name)
        except OSError:  # a file system without hard links
            with open(newest, "rb") as file, archive.replacing("save", name) as copy:
                shutil.copyfileobj(file, copy)
