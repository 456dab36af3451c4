"""The train command: the training loop, its saves, and the final score."""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rnnkit import distributed
from rnnkit.common.console import USER_ERRORS, CommandError, Interrupted, Parser, error_text
from rnnkit.common.pictures import write_picture
from rnnkit.language_model import sampling, scoring
from rnnkit.language_model.console import CollectiveError, Signals, deferred_signals
from rnnkit.language_model.every import Every
from rnnkit.language_model.job import Job, compare, prepared
from rnnkit.language_model.report import Progress
from rnnkit.language_model.training import Run
from rnnkit.plot import training

logger = logging.getLogger("rnnkit")


def train(args: argparse.Namespace, add_options: Callable[[Parser], None]) -> None:
    """Train and save a model; print its bits per byte on held-out text, and those of general-purpose compressors."""
    comm, end = distributed.world(), None
    with distributed.aborting(comm):
        distributed.share_cores(comm)
        try:
            _train(args, add_options, comm)
        except (CollectiveError, Interrupted) as error:
            end = error
        except USER_ERRORS as error:
            if comm is None:
                raise
            raise SystemExit(f"rnnkit: {error_text(error)}") from error
    if end and (comm is None or comm.rank == 0):
        raise end
    if end:
        raise SystemExit(2)


def _train(args: argparse.Namespace, add_options: Callable[[Parser], None], comm: Any) -> None:
    job = prepared(args, add_options, comm)
    with job.log, deferred_signals() as signals:
        compare(job)  # all ranks together, so that all handle signals before the first prints that training starts
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
    if job.origin:
        print(f"from      {job.origin}")
    if run.comm:
        print(f"ranks     {run.comm.size}")
    print(f"training  Ctrl-C saves the run to {job.saver.out}; continue it with --resume", flush=True)


def _work(job: Job, signals: Signals) -> None:
    """Train until the run is done or interrupted by a signal."""
    run, options = job.run, job.options
    every = {name: Every(options[name]).start(run) for name in options if name.endswith("_every")}
    with (
        Progress(run, job.tqdm if job.first else None) as progress,
        np.errstate(over="ignore", invalid="ignore"),  # the check of the loss below reports it
    ):
        while run.progress < 1:
            step = run.advance(signals.number is not None)
            if not math.isfinite(step.bits):
                raise CollectiveError(f"train: the loss must be finite, got {step.bits} in step {run.step}; lower --lr")
            due = {name for name, interval in every.items() if interval.due(run)}
            if run.progress == 1:
                due |= {"validate_every", "log_every"}
            with _log_os_errors("the progress output"):
                progress.update(step)
            bits = None
            if "validate_every" in due and job.first and job.texts.validation:
                bits = _validate(job)
                progress.validated(bits)
            with _log_os_errors("the log"):
                job.log.write(run, step, bits, "log_every" in due or bits is not None)
            if "sample_every" in due and job.first:
                with _log_os_errors("a sample"):
                    progress.say(_sample(run))
            if run.progress < 1 and step.stop:
                _save(job)
                raise _interrupted(job, signals)
            if run.progress < 1 and "save_every" in due:
                with _log_os_errors("a save"):
                    _save(job)
        job.speed = progress.speed()


@contextmanager
def _log_os_errors(what: str) -> Iterator[None]:
    """Log an I/O error instead of raising it: a full disk must not end a long run."""
    try:
        yield
    except BrokenPipeError:  # nobody reads the output any more
        raise
    except OSError as error:
        logger.warning("%s failed, but training continues: %s", what, error_text(error))


def _validate(job: Job) -> float:
    """Return the bits per byte on the validation text; with --keep, save the model if it is the best."""
    bits = scoring.bits_per_byte(job.run.model, job.texts.validation, job.texts.training)
    if bits < (math.inf if job.record.best_bits is None else job.record.best_bits):
        job.record.best_bits, job.record.best_step = bits, job.run.step
        if job.options["keep"]:
            _describe(job)
            with _log_os_errors("a save"):
                job.run.model.save(job.saver.best)
    return bits


def _sample(run: Run) -> str:
    text = bytes(islice(sampling.generate(run.model, b"\n", 0.7, seed=0), 200))
    return f"--- step {run.step:,}\n{text.decode(errors='replace')}"


def _save(job: Job) -> None:
    """Save the run, all ranks together."""
    state = job.run.carried()
    if state is not None:
        _describe(job)
        job.record.log_bits, job.record.log_steps, job.record.log_digest = job.log.state
        job.saver.save(job.run, job.record, state)
        _draw(job)


def _draw(job: Job) -> None:
    """With --plot, draw the curves of the log once it has a row."""
    if not job.first or "plot" not in job.options:
        return
    log, path = job.options["log"], Path(job.options["plot"])
    try:
        if os.path.getsize(log):
            write_picture("train", path, training(log))
    except (OSError, ValueError) as error:  # must not end a long run
        logger.warning("--plot %s failed: %s", path, error_text(error))


def _describe(job: Job) -> None:
    settings = asdict(job.run.settings) | {"steps": job.run.step}
    given = {name: value for name, value in settings.items() if value is not None}
    job.run.model.trained_with = {"text": job.record.source} | given


def _interrupted(job: Job, signals: Signals) -> Interrupted:
    if job.first:
        out = job.saver.out
        print(f"saved     {out}, after {job.run.step:,} steps; to resume: rnnkit train --resume {out}")
    return Interrupted(signals.number or signal.SIGTERM)


def _conclude(job: Job) -> None:
    """Save and score the model."""
    model, texts, out = job.run.model, job.texts, job.saver.out
    if not np.isfinite(model.parameters.flat).all():  # no loss has been computed since the last update
        raise CommandError("train: the weights are not finite after the last step; lower --lr")
    _describe(job)
    model.save(out)
    _draw(job)
    print(f"speed     {job.speed}")
    print(f"saved     {out}")
    record = job.record
    if record.best_bits is not None:
        print(f"best      {record.best_bits:.3f} bits per byte on the validation text, in step {record.best_step:,}")
    print("held-out bits per byte", flush=True)
    before = texts.training + texts.validation
    for name, bits in scoring.scores(model, texts.held_out, before):
        print(f"  {bits:6.3f}  {name}", flush=True)
