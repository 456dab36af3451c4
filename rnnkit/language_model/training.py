"""Training and scoring a language model: Adam, clipping, the loop over batches, held-out bits per byte."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np

from rnnkit.language_model import corpus
from rnnkit.language_model.model import State, TextModel


@dataclass(frozen=True)
class Settings:
    """How to train: `learning_rate` rises over the first 2 % of the steps and falls to zero along a cosine."""

    steps: int
    seq_len: int
    learning_rate: float
    clip: float
    seed: int


class Adam:
    """Adam (arXiv 1412.6980, algorithm 1) on one flat buffer, in place."""

    BLOCK = 1 << 15  # elements a pass works on: parameters, gradient, moments and scratch stay in the L2 cache

    def __init__(self, size: int, dtype: np.dtype, beta1: float = 0.9, beta2: float = 0.99, epsilon: float = 1e-8):
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.step = 0
        self._mean = np.zeros(size, dtype)
        self._square = np.zeros(size, dtype)
        self._scratch = np.empty(min(size, self.BLOCK), dtype)

    def update(self, parameters: np.ndarray, gradient: np.ndarray, learning_rate: float) -> None:
        """Move the parameters (size,) one step against the gradient (size,)."""
        self.step += 1
        # Both bias corrections folded into two scalars, as at the end of section 2 of the paper.
        root = math.sqrt(1 - self.beta2**self.step)
        rate = learning_rate * root / (1 - self.beta1**self.step)
        epsilon = self.epsilon * root
        for start in range(0, parameters.size, self.BLOCK):
            block = slice(start, start + self.BLOCK)
            g, m, v = gradient[block], self._mean[block], self._square[block]
            scratch = self._scratch[: g.size]
            m *= self.beta1
            m += np.multiply(g, 1 - self.beta1, out=scratch)
            v *= self.beta2
            np.multiply(g, g, out=scratch)
            scratch *= 1 - self.beta2
            v += scratch
            np.sqrt(v, out=scratch)
            scratch += epsilon
            np.divide(m, scratch, out=scratch)
            scratch *= rate
            parameters[block] -= scratch


def clip_norm(gradient: np.ndarray, limit: float) -> None:
    """Scale the gradient down, in place, to at most the Euclidean norm `limit`."""
    norm = math.sqrt(gradient @ gradient)
    if norm > limit:
        gradient *= limit / norm


def learning_rate(step: int, settings: Settings) -> float:
    """Return the rate of a step counted from 0."""
    warm_up = max(1, settings.steps // 50)
    rise = min(1.0, (step + 1) / warm_up)
    return settings.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * step / settings.steps))


def train(model: TextModel, rows: np.ndarray, settings: Settings) -> Iterator[float]:
    """Train in place on rows of text (row_size, N); yield the loss of every step, in nats per byte, when it is done."""
    optimizer = Adam(model.parameters.flat.size, model.parameters.flat.dtype)
    seeds = np.random.default_rng(settings.seed)
    batches = corpus.batches(rows, settings.seq_len)
    for step, (inputs, targets, first) in enumerate(islice(batches, settings.steps)):
        if first:
            state = State()
        model.gradient.flat.fill(0)
        seed = int(seeds.integers(1 << 32))
        nats, state = model.add_gradient(inputs, targets, state, count=inputs.size, seed=seed)
        clip_norm(model.gradient.flat, settings.clip)
        optimizer.update(model.parameters.flat, model.gradient.flat, learning_rate(step, settings))
        yield nats / inputs.size


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether Ctrl-C was pressed; a second Ctrl-C interrupts at once."""
    pressed = False

    def note(signum, frame):
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
