"""A training run on one or more processes, which can be interrupted after any step and resumed bit-identically."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np

from rnnkit import distributed
from rnnkit.errors import message
from rnnkit.language_model import corpus
from rnnkit.language_model.model import EXTRA_SUMS, State, TextModel
from rnnkit.language_model.settings import Settings
from rnnkit.training import Adam, clip_gradient_norm

BETA2 = 0.99  # of Adam: its usual 0.999 averages over too many steps, since gradients of text change fast
WARM_UP = 0.02  # share of a run in which the learning rate rises


class Step(NamedTuple):
    """Metrics of a training step."""

    bits: float  # per byte of the batch, before the update
    rate: float
    norm: float  # of the gradient, before clipping
    stop: bool  # whether any rank has requested a stop
    seconds: float  # on this rank


def optimizer_of(model: TextModel, settings: Settings) -> Adam:
    """Return an optimizer of the model's parameters, with weight decay as in `model.weight_decay_groups`."""
    groups = model.weight_decay_groups
    blocks = [model.parameters.flat[block] for block, _ in groups]
    decays = [settings.weight_decay * acts for _, acts in groups]
    return Adam(blocks, beta2=BETA2, weight_decay=decays)


def learning_rate(progress: float, settings: Settings) -> float:
    """Return the learning rate at a share of the run, 0..1: linear warm-up, and cosine decay to 0.

    It is rounded to float32, because the cosines of C libraries differ in the last bits.
    """
    rate = settings.lr * min(1.0, progress / WARM_UP) * 0.5 * (1 + math.cos(math.pi * progress))
    return float(np.float32(rate))


class Run:
    """A model, its optimizer and its position in the text.

    Every rank holds the whole model and works on its own rows. The gradients are summed over ranks, so that all ranks
    apply the same update. A rank processes its rows in `settings.accumulate` parts, one after the other.

    Parameters
    ----------
    model : TextModel
        Kept by reference.
    optimizer : Adam
        Of the model's parameters, from `optimizer_of`.
    text : bytes
        The text to train on.
    settings : Settings
    comm : mpi4py.MPI.Comm, optional
        The ranks.

    Attributes
    ----------
    step : int
        Steps done.
    seconds, first_seconds : float
        Time of these steps, and of the first one, which compiles; the same on every rank.
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
        self._gradients = [model.gradient.flat[block] for block, _ in model.weight_decay_groups]
        self.step, self.seconds, self.first_seconds = 0, 0.0, 0.0
        self._started: float | None = None  # virtual start time, as if this process had done the whole run

    @property
    def num_ranks(self) -> int:
        """Number of processes that train together."""
        return self.comm.size if self.comm else 1

    @property
    def num_steps(self) -> int | None:
        """Steps of the whole run; None if its budget is time."""
        name, amount = self.settings.budget
        if name == "epochs":
            return max(1, round(amount * corpus.num_batches(self._rows, self.settings.seq_len)))
        return amount if name == "steps" else None

    @property
    def step_bytes(self) -> int:
        """Bytes of a batch."""
        return self.settings.batch * self.settings.seq_len

    @property
    def progress(self) -> float:
        """The share of the run that is done, 0..1."""
        if self.num_steps is not None:
            return min(1.0, self.step / self.num_steps)
        whole = 60 * self.settings.minutes - self.first_seconds  # without the first step, which compiles
        return 1.0 if whole <= 0 else min(1.0, (self.seconds - self.first_seconds) / whole)

    def advance(self, stop: bool = False) -> Step:
        """Train one step; all ranks together.

        Parameters
        ----------
        stop : bool
            Whether this rank requests a stop; every rank receives it in `Step.stop`.
        """
        if self._started is None:
            self._started = time.perf_counter() - self.seconds
        settings, gradient, begin = self.settings, self.model.gradient, time.perf_counter()
        gradient.buffer.fill(0)
        nats = sum(self._add_part(number) for number in range(len(self._parts)))
        seconds = time.perf_counter() - self._started
        # Loss, stop and time are summed together with the gradient: one collective per step.
        gradient.buffer[-EXTRA_SUMS:] = nats, stop, seconds
        distributed.allreduce_gradients(gradient.buffer, self.comm)
        nats, stops, seconds = map(float, gradient.buffer[-EXTRA_SUMS:])
        norm = clip_gradient_norm(gradient.flat, settings.clip)
        rate = learning_rate(self._middle(), settings)
        self.optimizer.step(self._gradients, rate)
        self.step, self.seconds = self.step + 1, seconds / self.num_ranks
        self.first_seconds = self.first_seconds or self.seconds
        return Step(nats / self.step_bytes / math.log(2), rate, norm, stops > 0, time.perf_counter() - begin)

    def _middle(self) -> float:
        """Return the progress in the middle of the current step."""
        return self.progress if self.num_steps is None else (self.step + 0.5) / self.num_steps

    def _add_part(self, number: int) -> float:
        """Add the gradient of a part of this rank's rows; return its summed loss in nats."""
        settings, part = self.settings, self._parts[number]
        inputs, targets, first = corpus.batch(self._rows[:, part], settings.seq_len, self.step)
        state = State() if first else self.states[number]
        # A seed per step, so that no generator's state must be saved. The masks of a row do not depend on how the rows
        # are split.
        seed = int(np.random.SeedSequence((settings.seed, self.step)).generate_state(1, np.uint64)[0])
        nats, self.states[number] = self.model.add_gradient(
            inputs,
            targets,
            state,
            count=self.step_bytes,
            seed=seed,
            first_row=part.start,
            precision=settings.precision,
        )
        return nats

    def carried(self) -> State:
        """Return the states of all rows, on rank 0; None on the others. All ranks together."""
        own = [_concatenated(arrays) for arrays in zip(*self.states, strict=True)]
        ranks = self.comm.gather(own) if self.comm else [own]
        return ranks and State(*map(_concatenated, zip(*ranks, strict=True)))

    def resume(self, step: int, seconds: float, first_seconds: float, state: State) -> None:
        """Continue a run after these steps, with the states of all its rows."""
        self.step, self.seconds, self.first_seconds = step, seconds, first_seconds
        self.states = [
            State(*(None if array is None else array[:, part].copy() for array in state)) for part in self._parts
        ]


def _parts(rows: slice, count: int) -> list[slice]:
    """Split a range of rows into parts whose sizes differ by at most one."""
    size = rows.stop - rows.start
    ends = [rows.start + size * number // count for number in range(count + 1)]
    return [slice(*pair) for pair in zip(ends, ends[1:], strict=False)]


def _concatenated(arrays: Any) -> np.ndarray | None:
    return None if arrays[0] is None else np.concatenate(arrays, axis=1)
