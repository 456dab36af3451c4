"""A training run that can be stopped after any step and gone on with, to the same bits; on one process or many."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np

from rnnkit import distributed
from rnnkit.errors import message
from rnnkit.language_model import corpus
from rnnkit.language_model.model import SPARE, State, TextModel
from rnnkit.language_model.settings import Settings
from rnnkit.training import Adam, clip_gradient_norm

BETA2 = 0.99  # of Adam: gradients of text change faster than its usual 0.999 forgets
WARM_UP = 0.02  # share of a run in which the learning rate rises


class Step(NamedTuple):
    """What one step of training tells."""

    bits: float  # per byte, of the bytes it was trained on, before the update
    rate: float
    norm: float  # of the gradient, before it was clipped
    stop: bool  # whether any rank has asked for an end
    seconds: float  # that it took on this rank


def optimizer_of(model: TextModel, settings: Settings) -> Adam:
    """Return what moves the model's parameters; weight decay acts on those that `model.decayed` says."""
    blocks = [model.parameters.flat[block] for block, _ in model.decayed]
    return Adam(blocks, beta2=BETA2, weight_decay=[settings.weight_decay * acts for _, acts in model.decayed])


def learning_rate(progress: float, settings: Settings) -> float:
    """Return the rate at a share of the run, 0..1: it rises along a line, and falls to zero along a cosine.

    It is rounded to float32: in the last bits of a cosine C libraries differ.
    """
    rate = settings.lr * min(1.0, progress / WARM_UP) * 0.5 * (1 + math.cos(math.pi * progress))
    return float(np.float32(rate))


class Run:
    """A model, its optimizer and its place in the text.

    Every rank holds the whole model and works on rows of its own; the sum of their gradients moves them all alike. A
    rank takes its rows in `settings.accumulate` parts, one after the other.

    Parameters
    ----------
    model : TextModel
        Kept by reference.
    optimizer : Adam
        Of the model's parameters, as `optimizer_of` makes it.
    text : bytes
        To train on.
    settings : Settings
    comm : mpi4py.MPI.Comm, optional
        The ranks.

    Attributes
    ----------
    step : int
        Steps done.
    seconds, first_seconds : float
        Time that they took, and the first of them, which compiles; the same on every rank.
    """

    def __init__(self, model: TextModel, optimizer: Adam, text: bytes, settings: Settings, comm: Any = None):
        self.model, self.optimizer, self.settings, self.comm = model, optimizer, settings, comm
        rows = corpus.rows(text, settings.batch, settings.seq_len)
        own = distributed.shard(settings.batch, comm)
        if own.stop - own.start < settings.accumulate:
            expected = f"be at most the {own.stop - own.start} rows of a rank"
            raise ValueError(message("train", "--accumulate", expected, settings.accumulate, "give a larger --batch"))
        self._parts = _parts(own, settings.accumulate)
        self._rows, self.states = rows, [State()] * len(self._parts)
        self._gradients = [model.gradient.flat[block] for block, _ in model.decayed]
        self.step, self.seconds, self.first_seconds = 0, 0.0, 0.0
        self._started: float | None = None  # when the run would have begun if this process had done all of it

    @property
    def num_ranks(self) -> int:
        """Processes that train together."""
        return self.comm.size if self.comm else 1

    @property
    def num_steps(self) -> int | None:
        """Steps of the whole run; None where time decides."""
        name, amount = self.settings.budget
        if name == "epochs":
            return max(1, round(amount * corpus.num_batches(self._rows, self.settings.seq_len)))
        return amount if name == "steps" else None

    @property
    def step_bytes(self) -> int:
        """Bytes that a step reads."""
        return self.settings.batch * self.settings.seq_len

    @property
    def progress(self) -> float:
        """The share of the run that is done, 0..1."""
        if self.num_steps is not None:
            return min(1.0, self.step / self.num_steps)
        whole = 60 * self.settings.minutes - self.first_seconds  # the first step, which compiles, is no part of it
        return 1.0 if whole <= 0 else min(1.0, (self.seconds - self.first_seconds) / whole)

    def advance(self, stop: bool = False) -> Step:
        """Train one step; all ranks together.

        Parameters
        ----------
        stop : bool
            Whether this rank wants the run to end; every rank learns of it in `Step.stop`.
        """
        if self._started is None:
            self._started = time.perf_counter() - self.seconds
        settings, gradient, begin = self.settings, self.model.gradient, time.perf_counter()
        gradient.buffer.fill(0)
        nats = sum(self._add_part(number) for number in range(len(self._parts)))
        seconds = time.perf_counter() - self._started
        # What is not a gradient travels with it: one collective a step.
        gradient.buffer[-SPARE:] = nats, stop, seconds
        distributed.allreduce_gradients(gradient.buffer, self.comm)
        nats, stops, seconds = map(float, gradient.buffer[-SPARE:])
        norm = clip_gradient_norm(gradient.flat, settings.clip)
        rate = learning_rate(self._middle(), settings)
        self.optimizer.step(self._gradients, rate)
        self.step, self.seconds = self.step + 1, seconds / self.num_ranks
        self.first_seconds = self.first_seconds or self.seconds
        return Step(nats / self.step_bytes / math.log(2), rate, norm, stops > 0, time.perf_counter() - begin)

    def _middle(self) -> float:
        """The progress in the middle of the step that is being done."""
        return self.progress if self.num_steps is None else (self.step + 0.5) / self.num_steps

    def _add_part(self, number: int) -> float:
        """Add the gradient of a part of this rank's rows; return the sum of its losses in nats."""
        settings, part = self.settings, self._parts[number]
        inputs, targets, first = corpus.batch(self._rows[:, part], settings.seq_len, self.step)
        state = State() if first else self.states[number]
        # Masks of its own for each step, without a generator whose state would have to be kept; those of a row are the
        # same however the rows are shared out.
        seed = int(np.random.SeedSequence((settings.seed, self.step)).generate_state(1, np.uint64)[0])
        nats, self.states[number] = self.model.add_gradient(
            inputs, targets, state, count=self.step_bytes, seed=seed, first_row=part.start
        )
        return nats

    def carried(self) -> State:
        """Return the states of all rows, on rank 0; None on the others. All ranks together."""
        own = [_joined(arrays) for arrays in zip(*self.states, strict=True)]
        ranks = self.comm.gather(own) if self.comm else [own]
        return ranks and State(*map(_joined, zip(*ranks, strict=True)))

    def go_on(self, step: int, seconds: float, first_seconds: float, state: State) -> None:
        """Take the place of a run that has come this far, and the states of all its rows."""
        self.step, self.seconds, self.first_seconds = step, seconds, first_seconds
        self.states = [
            State(*(None if array is None else array[:, part].copy() for array in state)) for part in self._parts
        ]


def _parts(rows: slice, count: int) -> list[slice]:
    """Cut a range of rows into parts whose sizes differ by one at most."""
    size = rows.stop - rows.start
    ends = [rows.start + size * number // count for number in range(count + 1)]
    return [slice(*pair) for pair in zip(ends, ends[1:], strict=False)]


def _joined(arrays: Any) -> np.ndarray | None:
    return None if arrays[0] is None else np.concatenate(arrays, axis=1)
