"""Preparation of a training run: options, text, model and files, all checked before the first step."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rnnkit.common import archive
from rnnkit.common.console import USER_ERRORS, CommandError, Parser, error_text, optional_import
from rnnkit.common.pictures import checked_picture
from rnnkit.language_model import checkpoint, corpus
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.checkpoint import Record, Saver
from rnnkit.language_model.configuration import parsed
from rnnkit.language_model.console import CollectiveError, Named, check_distinct_files
from rnnkit.language_model.report import Log, LogState
from rnnkit.language_model.settings import DEFAULTS, KEPT, Settings
from rnnkit.language_model.training import Run, optimizer_of

KEEP_LABEL = "--out with --keep"  # in messages, for the files that both options name
MAX_NAMES_CHARS = 1 << 20  # of the list of the text's files, as JSON in the file of a run
MODEL_SETTINGS = ("mode", "layer_norm", "layers", "hidden", "embedding")  # settings that the file of a model has
SOURCE_LENGTH = 1000  # of the text's description in a model's file


@dataclass
class Job:
    """Everything that a training run needs, ready to start."""

    options: dict[str, Any]
    run: Run
    record: Record
    texts: corpus.Split
    saver: Saver
    log: Log
    origin: str  # description of the run or model it continues from; empty: none
    tqdm: Any  # the module; None: show no progress
    speed: str = ""  # described at the end

    @property
    def first(self) -> bool:
        """Whether this rank prints, saves and scores."""
        return self.run.comm is None or self.run.comm.rank == 0


def prepared(args: argparse.Namespace, add_options: Callable[[Parser], None], comm: Any) -> Job:
    """Check all options and read all files. If a rank fails, all ranks raise the error of the first that failed.

    Parameters
    ----------
    args : Namespace
        Only the options given on the command line, without defaults.
    add_options : callable
        Adds the options of a configuration file to a parser.
    comm : mpi4py.MPI.Comm or None
        The ranks.
    """
    if comm is None:
        return _job(args, add_options, comm)
    job, refusal = None, None
    try:
        job = _job(args, add_options, comm)
    except USER_ERRORS as error:
        refusal = error_text(error)
    refusals = comm.allgather(refusal)
    failed = [rank for rank, found in enumerate(refusals) if found]
    if failed:
        where = "" if len(failed) == comm.size else f"rank {failed[0]}: "
        raise CollectiveError(where + refusals[failed[0]])
    return job


def compare(job: Job) -> None:
    """Raise unless all ranks have the same text, model and settings."""
    comm, record = job.run.comm, job.record
    if comm is not None:
        own = record.text, checkpoint.digest(job.run.model.parameters.flat.tobytes()), record.settings.to_json()
        others = [rank for rank, found in enumerate(comm.allgather(own)) if found != comm.bcast(own)]
        if others:
            raise CollectiveError(f"train: rank {others[0]} has a different text, model or settings than rank 0")


def _job(args: argparse.Namespace, add_options: Callable[[Parser], None], comm: Any) -> Job:
    del args.run
    given = parsed(add_options, args)
    if "resume" in given and "init_from" in given:
        raise CommandError(f"train: --init-from must not be given with --resume, got {given['init_from']}")
    saved = checkpoint.load(given["resume"]) if "resume" in given else None
    known = saved.record if saved else None
    options = _with_defaults(given, known)
    tqdm = None if options.get("quiet") else optional_import("train", "tqdm")
    saver = Saver(Path(options["out"]), options["keep"])
    if "plot" in options and "log" not in options:
        raise CommandError("train: --log must be given with --plot, got none; the curves are those of the log")
    log = options.get("log") if comm is None or comm.rank == 0 else None
    _check_places(options, saver, log, known)
    files = options.get("files", [])
    chosen = {one.name: options[one.name] for one in fields(Settings) if one.name in options}
    if saved:
        record = saved.record
        _check_unchanged(chosen, record.settings, "--resume", "run")
        texts, _ = _texts(files or record.files, record.text)
        run = Run(saved.model, saved.optimizer, texts.training, record.settings, comm)
        run.resume(record.step, record.seconds, record.first_seconds, saved.state)
        origin = f"{options['resume']}, after {run.step:,} steps"
        if os.path.realpath(options["out"]) != os.path.realpath(options["resume"]):
            record.kept = []  # those belong to the other file and stay
    else:
        texts, digest = _texts(files)
        model, settings, origin = _initial_model(options, chosen, texts.training)
        run = Run(model, optimizer_of(model, settings), texts.training, settings, comm)
        source = textwrap.shorten(", ".join(files), SOURCE_LENGTH) or "the Python standard library"
        record = Record(settings, [], source, digest)
    if run.step and record.num_ranks != run.num_ranks:
        origin += f", by {record.num_ranks} ranks: results are not bit-identical from here on"
    record.num_ranks = run.num_ranks
    _record_options(record, options)
    state = LogState(record.log_bits, record.log_steps, record.log_digest)
    return Job(options, run, record, texts, saver, Log(log, run.step, state), origin, tqdm)


def _with_defaults(given: dict[str, Any], record: Record | None) -> dict[str, Any]:
    """Return all options: those given, then those of the resumed run, then the defaults."""
    return DEFAULTS | ({"out": given["resume"]} | record.options if record else {}) | given


def _record_options(record: Record, options: dict[str, Any]) -> None:
    """Store the options and files of a run in its record."""
    if options.get("files"):
        record.files = [str(Path(path).absolute()) for path in options["files"]]
        size = len(json.dumps(record.files))
        if size > MAX_NAMES_CHARS:
            expected = f"have names of at most {MAX_NAMES_CHARS} characters in total, with their folders, as JSON"
            raise CommandError(f"train: FILE must {expected}, got {size}; give fewer files")
    log = str(Path(options["log"]).absolute()) if "log" in options else None
    if log != record.log:
        record.log_digest = None
    for name in KEPT:
        if name in options:
            setattr(record, name, options[name])
    record.log = log


def _check_places(options: dict[str, Any], saver: Saver, log: str | None, record: Record | None) -> None:
    """Raise if a file cannot be written, or if it is also read or written as another one."""
    own, logs = [("--out", saver.out)], [("--log", Path(log))] if log else []
    plots = [("--plot", checked_picture("train", "--plot", options["plot"]))] if log and "plot" in options else []
    for name, path in own + logs:
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise CommandError(f"train: {name} must name a file in a folder that exists, got {path}")
        archive.check_target(path)  # now, since training would be lost if this failed at the end
    read: list[Named] = [("FILE", path) for path in options.get("files", [])]
    read += [("a FILE of the run of --resume", path) for path in record.files] if record else []
    read += [(f"--{key.replace('_', '-')}", options[key]) for key in ("config", "init_from") if key in options]
    check_distinct_files("train", own, read)  # --out may name the file of --resume
    read += [("--resume", options["resume"])] if record else []
    best = [(KEEP_LABEL, saver.best)] if options["keep"] else []
    for _, path in best:
        archive.check_target(path)
    check_distinct_files("train", best, [*read, *own])
    check_distinct_files("train", logs, [*read, *own, *best])
    check_distinct_files("train", plots, [*read, *own, *best, *logs])
    names = {*os.listdir(saver.out.absolute().parent), *(os.path.basename(path) for _, path in [*read, *logs])}
    steps = [(KEEP_LABEL, path) for path in saver.later(record.step if record else 0, sorted(names))]
    check_distinct_files("train", steps, [*read, *logs, *best, *plots])


def _texts(files: list[str], expected: str | None = None) -> tuple[corpus.Split, str]:
    """Return the parts of the text, and its digest."""
    text = corpus.read_files(files) if files else corpus.library_source()
    texts, digest = corpus.split(text), checkpoint.digest(text)
    if not texts.held_out:
        raise CommandError(f"train: text must have at least 20 bytes, so that one is held out, got {len(text)}")
    if expected not in (None, digest):
        names = ", ".join(map(str, files)) or "the Python standard library"
        raise CommandError(f"train: FILE must be the text of the resumed run, got a different text in {names}")
    return texts, digest


def _initial_model(
    options: dict[str, Any], given: dict[str, Any], text: bytes
) -> tuple[textmodel.TextModel, Settings, str]:
    """Return the initial model, the settings, and a description of the model's origin."""
    if "init_from" not in options:
        settings = Settings.of(given)
        return textmodel.TextModel.random(settings.desc, settings.seed, corpus.alphabet(text)), settings, ""
    model = textmodel.load(options["init_from"])
    desc = model.desc
    own = {"layers": desc.num_layers, "hidden": desc.hidden_size, "embedding": desc.input_size}
    try:
        own |= Settings.of_cell(desc.mode)
    except ValueError as error:
        raise CommandError(f"train: --init-from must be a model that train can make, got {error}") from None
    settings = Settings.of(own | given)
    _check_unchanged(
        {name: value for name, value in given.items() if name in own}, replace(settings, **own), "--init-from", "model"
    )
    trained = settings.desc
    if replace(desc, dropout=trained.dropout, mode=trained.mode) != trained:
        raise CommandError(f"train: --init-from must be a model that train can make, got {desc}")
    origin = f"the weights of {options['init_from']}, trained with {model.trained_with}"
    return textmodel.TextModel(trained, model.alphabet, model.parameters, model.trained_with), settings, origin


def _check_unchanged(given: dict[str, Any], own: Settings, option: str, what: str) -> None:
    """Raise if a given setting differs from that of the file."""
    for name, value in given.items():
        has = getattr(own, name)
        if value != has:
            source = f"the {what} of {option}"
            expected = f"be {has}, as in {source}" if has is not None else f"not be given, since {source} has none"
            new = option == "--resume" and name not in MODEL_SETTINGS
            cure = "; --init-from and another --out start a new run from its weights" if new else ""
            raise CommandError(f"train: --{name.replace('_', '-')} must {expected}, got {value}{cure}")
