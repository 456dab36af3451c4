"""What a training begins with: options, text, model and files, all checked before the first step."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rnnkit import archive
from rnnkit.language_model import checkpoint, corpus
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.checkpoint import Record, Saver
from rnnkit.language_model.configuration import parsed
from rnnkit.language_model.console import REFUSALS, Agreed, CommandError, Parser, extra, why
from rnnkit.language_model.every import Every
from rnnkit.language_model.report import Log
from rnnkit.language_model.settings import Settings
from rnnkit.language_model.training import Run, optimizer_of

DEFAULTS = {"out": "model.npz", "save_every": "10m", "keep": 0, "validate_every": "5%", "log_every": "20"}
OF_THE_MODEL = ("mode", "layers", "hidden", "embedding")  # settings that a model brings with it
SOURCE_LENGTH = 1000  # of the names of the files that a model was trained on, which it keeps


@dataclass
class Job:
    """All that a training needs, ready to begin."""

    options: dict[str, Any]
    run: Run
    record: Record
    texts: corpus.Split
    saver: Saver
    log: Log
    begun: str  # what it goes on from, in words
    tqdm: Any  # the module, or None where nothing is to be shown
    speed: str = ""  # in words, at the end

    @property
    def first(self) -> bool:
        """Whether this rank prints, saves and scores."""
        return self.run.comm is None or self.run.comm.rank == 0


def prepared(args: argparse.Namespace, add_options: Callable[[Parser], None], comm: Any) -> Job:
    """Check all that was given, and read all files; where one rank refuses, all end, and the first that did says why.

    Parameters
    ----------
    args : Namespace
        What is given on the command line, and nothing else.
    add_options : callable
        Adds what a configuration file may give to a parser.
    comm : mpi4py.MPI.Comm or None
        The ranks.
    """
    if comm is None:
        return _job(args, add_options, comm)
    job, refusal = None, None
    try:
        job = _job(args, add_options, comm)
    except REFUSALS as error:
        refusal = why(error)
    refusals = comm.allgather(refusal)
    failed = [rank for rank, found in enumerate(refusals) if found]
    if failed:
        where = "" if len(failed) == comm.size else f"rank {failed[0]}: "
        raise Agreed(where + refusals[failed[0]])
    return job


def compare(job: Job) -> None:
    """Refuse ranks that have read other texts, or other models."""
    comm, record = job.run.comm, job.record
    if comm is not None:
        own = record.text, checkpoint.digest(job.run.model.parameters.flat.tobytes()), record.settings.to_json()
        others = [rank for rank, found in enumerate(comm.allgather(own)) if found != comm.bcast(own)]
        if others:
            expected = "have the text, model and settings of rank 0"
            raise Agreed(f"train: all ranks must {expected}, got others on rank {others[0]}")


def _job(args: argparse.Namespace, add_options: Callable[[Parser], None], comm: Any) -> Job:
    del args.run
    defaults = {name: Every(value) if name.endswith("_every") else value for name, value in DEFAULTS.items()}
    options = parsed(add_options, args, defaults | ({"out": args.resume} if "resume" in args else {}))
    tqdm = None if options.get("quiet") else extra("train", "tqdm")
    out = Path(options["out"])
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise CommandError(f"train: --out must name a file in a folder that exists, got {out}")
    archive.check_target(out)  # as after the training, which would be lost then
    _keep_apart(options)
    given = {one.name: options[one.name] for one in fields(Settings) if one.name in options}
    if "resume" in options:
        if "init_from" in options:
            raise CommandError(f"train: --init-from must be left out with --resume, got {options['init_from']}")
        saved = checkpoint.load(options["resume"])
        _refuse_others(given, saved.record.settings, "--resume", "run")
        texts, _ = _texts(options.get("files") or saved.record.files, saved.record.text)
        run = Run(saved.model, saved.optimizer, texts.training, saved.record.settings, comm)
        run.go_on(saved.record.step, saved.record.seconds, saved.record.first_seconds, saved.state)
        record, begun = saved.record, f"{options['resume']}, after {run.step:,} steps"
    else:
        texts, digest = _texts(options.get("files", []))
        model, settings, begun = _beginning(options, given, texts.training)
        run = Run(model, optimizer_of(model, settings), texts.training, settings, comm)
        files = options.get("files", [])
        source = textwrap.shorten(", ".join(files), SOURCE_LENGTH) or "the Python standard library"
        record = Record(settings, [str(Path(path).absolute()) for path in files], source, digest)
    if run.step and record.num_ranks != run.num_ranks:
        begun += f", on {record.num_ranks} ranks then: from here on the bits are others"
    record.num_ranks = run.num_ranks
    log = Log(options.get("log") if comm is None or comm.rank == 0 else None, run.step)
    return Job(options, run, record, texts, Saver(out, options["keep"]), log, begun, tqdm)


def _keep_apart(options: dict[str, Any]) -> None:
    """Refuse to write over what is read, or two things into one file."""
    written = [(f"--{name}", options[name]) for name in ("out", "log") if name in options]
    read = [("FILE", path) for path in options.get("files", [])]
    read += [("--config", options["config"])] if "config" in options else []
    for number, (name, path) in enumerate(written):
        for other, taken in read + written[:number]:
            if os.path.realpath(path) == os.path.realpath(taken):
                raise CommandError(f"train: {name} must name a file of its own, got {path}, as {other} does")


def _texts(files: list[str], expected: str | None = None) -> tuple[corpus.Split, str]:
    """Return the parts of the text, and what tells it from others."""
    text = corpus.read_files(files) if files else corpus.library_source()
    texts, digest = corpus.split(text), checkpoint.digest(text)
    if not texts.held_out:
        raise CommandError(f"train: text must have at least 20 bytes, so that one can be held out, got {len(text)}")
    if expected not in (None, digest):
        names = ", ".join(map(str, files)) or "the Python standard library"
        raise CommandError(f"train: FILE must be the text that the run began with, got another one in {names}")
    return texts, digest


def _beginning(
    options: dict[str, Any], given: dict[str, Any], text: bytes
) -> tuple[textmodel.TextModel, Settings, str]:
    """Return the model, the settings, and what the model has learned before, in words."""
    if "init_from" not in options:
        settings = Settings.of(given)
        return textmodel.TextModel.random(settings.desc, settings.seed, corpus.alphabet(text)), settings, ""
    model = textmodel.load(options["init_from"])
    desc = model.desc
    own = dict(zip(OF_THE_MODEL, (desc.mode, desc.num_layers, desc.hidden_size, desc.input_size), strict=True))
    settings = Settings.of(own | given)
    _refuse_others({name: value for name, value in given.items() if name in own}, replace(settings, **own),
                   "--init-from", "model")
    desc = replace(desc, dropout=settings.dropout)
    if desc != settings.desc:
        raise CommandError(f"train: --init-from must be a model that train makes, got one of {desc}")
    begun = f"the weights of {options['init_from']}, trained with {model.trained_with}"
    return textmodel.TextModel(desc, model.alphabet, model.parameters, model.trained_with), settings, begun


def _refuse_others(given: dict[str, Any], own: Settings, option: str, what: str) -> None:
    """Settings may be given again, but not others than those that a file brings with it."""
    for name, value in given.items():
        has = getattr(own, name)
        if value != has:
            expected = f"be {has}" if has is not None else "be left out"
            cure = f"with {option}, as in its {what}, got {value}"
            raise CommandError(f"train: --{name.replace('_', '-')} must {expected} {cure}")
