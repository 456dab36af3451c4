"""What a training begins with: options, text, model and files, all checked before the first step."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rnnkit.descriptor import archive
from rnnkit.language_model import checkpoint, corpus
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.checkpoint import Record, Saver
from rnnkit.language_model.configuration import parsed
from rnnkit.language_model.console import REFUSALS, Agreed, CommandError, Named, Parser, extra, keep_apart, why
from rnnkit.language_model.every import Every
from rnnkit.language_model.report import Log, LogState
from rnnkit.language_model.settings import Settings
from rnnkit.language_model.training import Run, optimizer_of

DEFAULTS = {"out": "model.npz", "save_every": "10m", "keep": 0, "validate_every": "5%", "log_every": "20"}
KEPT = "--out with --keep"  # what these name together
NAMES = 1 << 20  # longest list of the text's files, as JSON; a saved run has it as a text
OF_THE_MODEL = ("mode", "layer_norm", "layers", "hidden", "embedding")  # settings that a model brings with it
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
    given = parsed(add_options, args)
    if "resume" in given and "init_from" in given:
        raise CommandError(f"train: --init-from must be left out with --resume, got {given['init_from']}")
    saved = checkpoint.load(given["resume"]) if "resume" in given else None
    known = saved.record if saved else None
    options = _with_defaults(given, known)
    tqdm = None if options.get("quiet") else extra("train", "tqdm")
    saver = Saver(Path(options["out"]), options["keep"])
    log = options.get("log") if comm is None or comm.rank == 0 else None
    _check_places(options, saver, log, known)
    files = options.get("files", [])
    chosen = {one.name: options[one.name] for one in fields(Settings) if one.name in options}
    if saved:
        record = saved.record
        _refuse_others(chosen, record.settings, "--resume", "run")
        texts, _ = _texts(files or record.files, record.text)
        run = Run(saved.model, saved.optimizer, texts.training, record.settings, comm)
        run.go_on(record.step, record.seconds, record.first_seconds, saved.state)
        begun = f"{options['resume']}, after {run.step:,} steps"
        if os.path.realpath(options["out"]) != os.path.realpath(options["resume"]):
            record.kept = []  # beside the other file, where they stay
    else:
        texts, digest = _texts(files)
        model, settings, begun = _beginning(options, chosen, texts.training)
        run = Run(model, optimizer_of(model, settings), texts.training, settings, comm)
        source = textwrap.shorten(", ".join(files), SOURCE_LENGTH) or "the Python standard library"
        record = Record(settings, [], source, digest)
    if run.step and record.num_ranks != run.num_ranks:
        begun += f", on {record.num_ranks} ranks then: from here on the bits are others"
    record.num_ranks = run.num_ranks
    _note(record, options)
    state = LogState(record.log_bits, record.log_steps, record.log_digest)
    return Job(options, run, record, texts, saver, Log(log, run.step, state), begun, tqdm)


def _with_defaults(given: dict[str, Any], record: Record | None) -> dict[str, Any]:
    """Return all options: those that are not given are those of the run that goes on, or the defaults."""
    texts: dict[str, Any] = DEFAULTS | ({"out": given["resume"]} | record.options if record else {})
    return {name: Every(text) if name.endswith("_every") else text for name, text in texts.items()} | given


def _note(record: Record, options: dict[str, Any]) -> None:
    """Note in a run's record what it was given beside its settings."""
    if options.get("files"):
        record.files = [str(Path(path).absolute()) for path in options["files"]]
        size = len(json.dumps(record.files))
        if size > NAMES:
            expected = f"have names of at most {NAMES} characters together, with their folders and as JSON"
            raise CommandError(f"train: FILE must {expected}, got {size}; give fewer files")
    log = str(Path(options["log"]).absolute()) if "log" in options else None
    if log != record.log:
        record.log_digest = None
    for name in checkpoint.OPTIONS:
        if name in options:
            setattr(record, name, str(options[name]) if name.endswith("_every") else options[name])
    record.log = log


def _check_places(options: dict[str, Any], saver: Saver, log: str | None, record: Record | None) -> None:
    """Refuse what cannot be written, and to write over what is read, or two things into one file."""
    own, logs = [("--out", saver.out)], [("--log", Path(log))] if log else []
    for name, path in own + logs:
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise CommandError(f"train: {name} must name a file in a folder that exists, got {path}")
        archive.check_target(path)  # as after the training, which would be lost then
    read: list[Named] = [("FILE", path) for path in options.get("files", [])]
    read += [("the run of --resume", path) for path in record.files] if record else []
    read += [(f"--{key.replace('_', '-')}", options[key]) for key in ("config", "init_from") if key in options]
    keep_apart("train", own, read)  # and --resume, which --out may name
    read += [("--resume", options["resume"])] if record else []
    best = [(KEPT, saver.best)] if options["keep"] else []
    for _, path in best:
        archive.check_target(path)
    keep_apart("train", best, [*read, *own])
    keep_apart("train", logs, [*read, *own, *best])
    names = {*os.listdir(saver.out.absolute().parent), *(os.path.basename(path) for _, path in [*read, *logs])}
    steps = [(KEPT, path) for path in saver.later(record.step if record else 0, sorted(names))]
    keep_apart("train", steps, [*read, *logs, *best])


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
    own = {"layers": desc.num_layers, "hidden": desc.hidden_size, "embedding": desc.input_size}
    try:
        own |= Settings.of_cell(desc.mode)
    except ValueError as error:
        raise CommandError(f"train: --init-from must be a model that train makes, got one of {error}") from None
    settings = Settings.of(own | given)
    _refuse_others({name: value for name, value in given.items() if name in own}, replace(settings, **own),
                   "--init-from", "model")
    trained = settings.desc
    if replace(desc, dropout=trained.dropout, mode=trained.mode) != trained:
        raise CommandError(f"train: --init-from must be a model that train makes, got one of {desc}")
    begun = f"the weights of {options['init_from']}, trained with {model.trained_with}"
    return textmodel.TextModel(trained, model.alphabet, model.parameters, model.trained_with), settings, begun


def _refuse_others(given: dict[str, Any], own: Settings, option: str, what: str) -> None:
    """Settings may be given again, but not others than those that a file brings with it."""
    for name, value in given.items():
        has = getattr(own, name)
        if value != has:
            expected = f"be {has}" if has is not None else "be left out"
            new = option == "--resume" and name not in OF_THE_MODEL
            cure = "; with --init-from and another --out a new run begins from its weights" if new else ""
            got = f"with {option}, as in its {what}, got {value}"
            raise CommandError(f"train: --{name.replace('_', '-')} must {expected} {got}{cure}")
