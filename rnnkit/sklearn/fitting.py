"""Training loop with early stopping and a progress bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from rnnkit.common.extras import to_install
from rnnkit.errors import message
from rnnkit.sklearn.model import Model, Objective
from rnnkit.sklearn.sequences import Sequences
from rnnkit.training import Adam, bucket_batches, clip_gradient_norm

WINDOW = 8  # number of batches that are sorted by length together, see `bucket_batches`


class Loop(NamedTuple):
    """Inputs of a training run."""

    function: str  # for errors
    model: Model
    optimizer: Adam
    sequences: Sequences
    objective: Objective
    batch_size: int
    learning_rate: float
    clip_norm: float
    seed: int


class Curves(NamedTuple):
    """Mean training and validation losses of the epochs."""

    training: list[float]
    validation: list[float]


def run_epoch(loop: Loop, epoch: int) -> float:
    """Train on every sequence once; return the mean loss. Randomness depends only on the seed and the epoch."""
    model, lengths, total = loop.model, loop.sequences.lengths, 0.0
    rng = np.random.default_rng((loop.seed, epoch))
    for numbers in bucket_batches(lengths, loop.batch_size, seed=_new_seed(rng), window=WINDOW):
        total += len(numbers) * model.find_gradient(loop.sequences, numbers, loop.objective, _new_seed(rng))
        norm = clip_gradient_norm(model.gradients, loop.clip_norm)
        if not math.isfinite(norm):
            text = f"learning_rate={loop.learning_rate} leads to a gradient norm of {norm} in epoch {epoch}; lower it"
            raise ValueError(f"{loop.function}: {text}")
        loop.optimizer.step(model.gradients, loop.learning_rate)
    return total / len(lengths)


def run_epochs(loop: Loop, epochs: int, patience: int, validate: Callable[[], float] | None, verbose: bool) -> Curves:
    """Train; with `validate`, stop after `patience` epochs without a lower loss, and restore the best parameters."""
    curves, best, saved = Curves([], []), math.inf, []
    with _bar(loop.function, epochs, verbose) as show:
        for epoch in range(1, epochs + 1):
            curves.training.append(run_epoch(loop, epoch))
            if validate:
                curves.validation.append(validate())
                if curves.validation[-1] < best:
                    best, saved = curves.validation[-1], [array.copy() for array in loop.model.parameters]
            show(curves)
            if validate and epoch - np.argmin(curves.validation) > patience:
                break
    for array, value in zip(loop.model.parameters, saved, strict=False):
        array[...] = value
    return curves


def split(classes: np.ndarray, fraction: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Split samples at random, stratified by class; return the indices for training and for validation.

    Shuffles the samples within each class, and takes every 1/fraction-th for validation.
    """
    order = rng.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    count = min(max(1, round(fraction * len(order))), len(order) - 1)
    chosen = np.zeros(len(order), bool)
    chosen[((np.arange(count) + 0.5) * len(order) / count).astype(np.int64)] = True
    return np.sort(order[~chosen]), np.sort(order[chosen])


def _new_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))


@contextmanager
def _bar(function: str, epochs: int, verbose: bool) -> Iterator[Callable[[Curves], None]]:
    """Yield a function that updates the progress bar after an epoch."""
    if not verbose:
        yield lambda curves: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        cure = f"{to_install('tqdm')}, or set verbose=False"
        raise ImportError(message(function, "the package tqdm", "be installed", "none", cure)) from None
    with tqdm(total=epochs, desc=function, unit="epoch") as bar:

        def show(curves: Curves) -> None:
            losses = {"loss": curves.training} | ({"validation": curves.validation} if curves.validation else {})
            bar.set_postfix({name: f"{values[-1]:.4g}" for name, values in losses.items()}, refresh=False)
            bar.update()

        yield show
