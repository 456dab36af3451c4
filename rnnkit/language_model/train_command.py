"""The command that trains: the loop, and what it leaves."""

from __future__ import annotations

import argparse
import logging
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import Any

import numpy as np

from rnnkit import distributed
from rnnkit.language_model import sampling, scoring
from rnnkit.language_model.console import (
    REFUSALS,
    Agreed,
    CommandError,
    Interrupted,
    Parser,
    Signals,
    noticed_signals,
    why,
)
from rnnkit.language_model.job import Job, compare, prepared
from rnnkit.language_model.report import Progress
from rnnkit.language_model.training import Run

logger = logging.getLogger("rnnkit")


def train(args: argparse.Namespace, add_options: Callable[[Parser], None]) -> None:
    """Train a model, save it, and print what it makes of the held-out text beside general compressors."""
    comm, end = distributed.world(), None
    with distributed.aborting(comm):
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
    job = prepared(args, add_options, comm)
    with job.log, noticed_signals() as signals:
        compare(job)  # all ranks together: signals are noticed on all of them before the first says that it begins
        if job.first:
            _introduce(job)
        _work(job, signals)
    if job.first:
        _conclude(job)


def _introduce(job: Job) -> None:
    run, texts = job.run, job.texts
    others = f"{len(texts.validation):,} for validation, {len(texts.held_out):,} held out"
    print(f"text      {job.record.source}: {len(texts.training):,} bytes to train on, {others}")
    print(f"model     {run.model.desc}, {run.model.parameters.flat.size:,} parameters with embedding and output")
    if job.begun:
        print(f"from      {job.begun}")
    if run.comm:
        print(f"ranks     {run.comm.size}")
    print(f"training  Ctrl-C saves the run in {job.saver.out}, which --resume goes on with", flush=True)


def _work(job: Job, signals: Signals) -> None:
    """Train until the run is done, or a signal has come."""
    run, options = job.run, job.options
    every = {name: options[name].start(run) for name in options if name.endswith("_every")}
    with (
        Progress(run, job.tqdm if job.first else None) as progress,
        np.errstate(over="ignore", invalid="ignore"),  # the loss tells, once and with the cure
    ):
        while run.progress < 1:
            step = run.advance(signals.number is not None)
            if not math.isfinite(step.bits):
                raise Agreed(f"train: the loss must stay finite, got {step.bits} in step {run.step}; give a lower --lr")
            due = {name for name, interval in every.items() if interval.due(run)}
            if run.progress == 1:
                due |= {"validate_every", "log_every"}
            with _outlived("the progress"):
                progress.update(step)
            bits = None
            if "validate_every" in due and job.first and job.texts.validation:
                bits = _validate(job)
                progress.validated(bits)
            with _outlived("the log"):
                job.log.write(run, step, bits, "log_every" in due or bits is not None)
            if "sample_every" in due and job.first:
                with _outlived("a sample"):
                    progress.say(_sample(run))
            if run.progress < 1 and step.stop:
                _save(job)
                raise _interrupted(job, signals)
            if run.progress < 1 and "save_every" in due:
                with _outlived("a save"):
                    _save(job)
        job.speed = progress.speed()


@contextmanager
def _outlived(what: str) -> Iterator[None]:
    """A disk that is full does not end a run, which may go on until there is room again."""
    try:
        yield
    except BrokenPipeError:  # nobody reads what is shown
        raise
    except OSError as error:
        logger.warning("%s failed, and the run goes on: %s", what, why(error))


def _validate(job: Job) -> float:
    """Return the bits per byte on the validation text, and keep the model that needs the fewest."""
    bits = scoring.bits_per_byte(job.run.model, job.texts.validation, job.texts.training)
    if bits < (math.inf if job.record.best_bits is None else job.record.best_bits):
        job.record.best_bits, job.record.best_step = bits, job.run.step
        if job.options["keep"]:
            _describe(job)
            with _outlived("a save"):
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
        job.record.log_bits, job.record.log_steps, job.record.log_digest = job.log.state
        job.saver.save(job.run, job.record, state)


def _describe(job: Job) -> None:
    settings = asdict(job.run.settings) | {"steps": job.run.step}
    given = {name: value for name, value in settings.items() if value is not None}
    job.run.model.trained_with = {"text": job.record.source} | given


def _interrupted(job: Job, signals: Signals) -> Interrupted:
    if job.first:
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
    for name, bits in scoring.scores(model, texts.held_out, before):
        print(f"  {bits:6.3f}  {name}", flush=True)
