"""The command that trains: what it begins with, the loop, and what it leaves."""

from __future__ import annotations

import argparse
import math
import signal
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rnnkit import archive, distributed
from rnnkit.language_model import checkpoint, corpus, sampling, scoring
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.checkpoint import Record, Saver
from rnnkit.language_model.configuration import parsed
from rnnkit.language_model.console import (
    REFUSALS,
    Agreed,
    CommandError,
    Interrupted,
    Parser,
    Signals,
    extra,
    noticed_signals,
    why,
)
from rnnkit.language_model.every import Every
from rnnkit.language_model.report import Log, Progress
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


def train(args: argparse.Namespace, add_options: Callable[[Parser], None]) -> None:
    """Train a model, save it, and print what it makes of the held-out text beside general compressors."""
    comm, end = distributed.world(), None
    # The threads of NumPy's BLAS go on spinning after a product, on the cores that the engine needs: with them a step
    # of the default network took 22 ms, without them 15 ms. One thread also means the same bits on any machine size.
    with extra("train", "threadpoolctl").threadpool_limits(1, "blas"), distributed.aborting(comm):
        distributed.share_cores(comm)
        try:
            _train(args, add_options, comm)
        except (Agreed, Interrupted) as error:
            end = error
        except REFUSALS as error:
            if comm is None:
                raise
            raise SystemExit(f"rnnkit: {why(error)}") from error
    if end and (comm is None or comm.rank == 0):
        raise end
    if end:
        raise SystemExit(2)


def _train(args: argparse.Namespace, add_options: Callable[[Parser], None], comm: Any) -> None:
    job = _together(comm, lambda: _job(args, add_options, comm))
    first = comm is None or comm.rank == 0
    with noticed_signals() as signals:
        _compare(job)  # all ranks together: signals are noticed on all of them before the first says that it begins
        if first:
            _introduce(job)
        _work(job, signals, first)
    if first:
        _conclude(job)


def _job(args: argparse.Namespace, add_options: Callable[[Parser], None], comm: Any) -> Job:
    """Check all that was given, and read all files."""
    del args.run
    defaults = {name: Every(value) if name.endswith("_every") else value for name, value in DEFAULTS.items()}
    options = parsed(add_options, args, defaults | ({"out": args.resume} if "resume" in args else {}))
    tqdm = None if options.get("quiet") else extra("train", "tqdm")
    out = Path(options["out"])
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise CommandError(f"train: --out must name a file in a folder that exists, got {out}")
    archive.check_target(out)  # as after the training, which would be lost then
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


def _together(comm: Any, work: Callable[[], Job]) -> Job:
    """Do what may be refused on all ranks; where one refuses, all end, and the first that did says why."""
    if comm is None:
        return work()
    job, refusal = None, None
    try:
        job = work()
    except REFUSALS as error:
        refusal = why(error)
    refusals = comm.allgather(refusal)
    failed = [rank for rank, found in enumerate(refusals) if found]
    if failed:
        where = "" if len(failed) == comm.size else f"rank {failed[0]}: "
        raise Agreed(where + refusals[failed[0]])
    return job


def _compare(job: Job) -> None:
    """Refuse ranks that have read other texts, or other models."""
    comm, record = job.run.comm, job.record
    if comm is not None:
        own = record.text, checkpoint.digest(job.run.model.parameters.flat.tobytes()), record.settings.to_json()
        others = [rank for rank, found in enumerate(comm.allgather(own)) if found != comm.bcast(own)]
        if others:
            expected = "have the text, model and settings of rank 0"
            raise Agreed(f"train: all ranks must {expected}, got others on rank {others[0]}")


def _introduce(job: Job) -> None:
    run, texts = job.run, job.texts
    held = f"{len(texts.validation):,} for validation, {len(texts.held_out):,} held out"
    print(f"text      {job.record.source}: {len(texts.training):,} bytes to train on, {held}")
    print(f"model     {run.model.desc}, {run.model.parameters.flat.size:,} parameters with embedding and output")
    if job.begun:
        print(f"from      {job.begun}")
    if run.comm:
        print(f"ranks     {run.comm.size}")
    print(f"training  Ctrl-C saves the run in {job.saver.out}, which --resume goes on with", flush=True)


def _work(job: Job, signals: Signals, first: bool) -> None:
    """Train until the run is done, or a signal has come."""
    run, options = job.run, job.options
    every = {name: options[name].start(run) for name in DEFAULTS if name.endswith("_every")}
    samples = options["sample_every"].start(run) if "sample_every" in options else None
    with (
        Progress(run, job.tqdm if first else None) as progress,
        job.log as log,
        np.errstate(over="ignore", invalid="ignore"),  # the loss tells, once and with the cure
    ):
        while run.progress < 1:
            step = run.advance(signals.number is not None)
            if not math.isfinite(step.bits):
                raise Agreed(f"train: the loss must stay finite, got {step.bits} in step {run.step}; give a lower --lr")
            progress.update(step)
            bits = None
            if (every["validate_every"].due(run) or run.progress == 1) and first and job.texts.validation:
                bits = _validate(job)
                progress.validated(bits)
            log.write(run, step, bits, every["log_every"].due(run) or bits is not None or run.progress == 1)
            if samples and samples.due(run) and first:
                progress.say(_sample(run))
            if step.stop:
                _save(job)
                raise _interrupted(job, signals, first)
            if every["save_every"].due(run) and run.progress < 1:
                _save(job)
        job.speed = progress.speed()


def _validate(job: Job) -> float:
    """Return the bits per byte on the validation text, and keep the model that needs the fewest."""
    bits = scoring.bits_per_byte(job.run.model, job.texts.validation, job.texts.training)
    if job.record.best_bits is None or bits < job.record.best_bits:
        job.record.best_bits, job.record.best_step = bits, job.run.step
        if job.options["keep"]:
            _describe(job)
            job.run.model.save(job.saver.best)
    return bits


def _sample(run: Run) -> str:
    text = bytes(islice(sampling.generate(run.model, b"\n", 0.7, seed=0), 200))
    return f"--- step {run.step:,}\n{text.decode(errors='replace')}"


def _save(job: Job) -> None:
    """Write the run's file; all ranks together."""
    state = job.run.carried()
    if state is not None:
        _describe(job)
        job.saver.save(job.run, job.record, state)


def _describe(job: Job) -> None:
    settings = asdict(job.run.settings) | {"steps": job.run.step}
    given = {name: value for name, value in settings.items() if value is not None}
    job.run.model.trained_with = {"text": job.record.source} | given


def _interrupted(job: Job, signals: Signals, first: bool) -> Interrupted:
    if first:
        out = job.saver.out
        print(f"saved     {out}, after {job.run.step:,} steps; to go on: rnnkit train --resume {out}")
    return Interrupted(signals.number or signal.SIGTERM)


def _conclude(job: Job) -> None:
    """Save the model, and score it."""
    model, texts, out = job.run.model, job.texts, job.saver.out
    if not np.isfinite(model.parameters.flat).all():  # the loss of the last update is not seen
        raise CommandError("train: the weights must stay finite, got others in the last step; give a lower --lr")
    _describe(job)
    model.save(out)
    print(f"speed     {job.speed}")
    print(f"saved     {out}")
    record = job.record
    if record.best_bits is not None:
        print(f"best      {record.best_bits:.3f} bits per byte on the validation text, in step {record.best_step:,}")
    print("held-out bits per byte", flush=True)
    before = texts.training + texts.validation
    scores = {"rnnkit": scoring.bits_per_byte(model, texts.held_out, before)}
    for name, bits in (scores | corpus.yardsticks(texts.held_out, before)).items():
        print(f"  {bits:6.3f}  {name}")
