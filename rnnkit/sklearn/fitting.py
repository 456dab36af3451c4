"""The training loop: epochs of batches, an early stop, a bar."""

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

WINDOW = 8  # batches that are sorted by length together: see `bucket_batches`


class Loop(NamedTuple):
    """What a run is given."""

    function: str  # for messages
    model: Model
    optimizer: Adam
    sequences: Sequences
    objective: Objective
    batch_size: int
    learning_rate: float
    clip_norm: float
    seed: int


class Curves(NamedTuple):
    """The mean loss of every epoch, and that of the validation part after it."""

    training: list[float]
    validation: list[float]


def run_epoch(loop: Loop, epoch: int) -> float:
    """Train on every sequence once; return the mean loss. All that is drawn follows from the seed and the epoch."""
    model, lengths, total = loop.model, loop.sequences.lengths, 0.0
    rng = np.random.default_rng((loop.seed, epoch))
    for numbers in bucket_batches(lengths, loop.batch_size, seed=_drawn(rng), window=WINDOW):
        total += len(numbers) * model.find_gradient(loop.sequences, numbers, loop.objective, _drawn(rng))
        norm = clip_gradient_norm(model.gradients, loop.clip_norm)
        if not math.isfinite(norm):
            got, cure = f"{loop.learning_rate} and a norm of {norm} in epoch {epoch}", "give a smaller one"
            raise ValueError(message(loop.function, "learning_rate", "keep the gradient finite", got, cure))
        loop.optimizer.step(model.gradients, loop.learning_rate)
    return total / len(lengths)


def run_epochs(
    loop: Loop, epochs: int, patience: int, validate: Callable[[], float] | None, verbose: bool
) -> Curves:
    """Train; with a validation part until the loss on it has not fallen for `patience` epochs, and go back to the best.
    """
    curves, best, kept = Curves([], []), math.inf, []
    with _bar(loop.function, epochs, verbose) as show:
        for epoch in range(1, epochs + 1):
            curves.training.append(run_epoch(loop, epoch))
            if validate:
                curves.validation.append(validate())
                if curves.validation[-1] < best:
                    best, kept = curves.validation[-1], [array.copy() for array in loop.model.parameters]
            show(curves)
            if validate and epoch - np.argmin(curves.validation) > patience:
                break
    for array, before in zip(loop.model.parameters, kept, strict=False):
        array[...] = before
    return curves


def split(classes: np.ndarray, fraction: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the samples for training and for validation, drawn with about the same shares of classes.

    Of the samples in the order of their classes, at random within one, every 1/fraction-th is taken.
    """
    order = rng.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    count = min(max(1, round(fraction * len(order))), len(order) - 1)
    chosen = np.zeros(len(order), bool)
    chosen[((np.arange(count) + 0.5) * len(order) / count).astype(np.int64)] = True
    return np.sort(order[~chosen]), np.sort(order[chosen])


def _drawn(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))


@contextmanager
def _bar(function: str, epochs: int, verbose: bool) -> Iterator[Callable[[Curves], None]]:
    """Give what shows an epoch that is done."""
    if not verbose:
        yield lambda curves: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        cure = f"{to_install('tqdm')}, or give verbose=False"
        raise ImportError(message(function, "the package tqdm", "be installed", "none", cure)) from None
    with tqdm(total=epochs, desc=function, unit="epoch") as bar:

        def show(curves: Curves) -> None:
            losses = {"loss": curves.training} | ({"validation": curves.validation} if curves.validation else {})
            bar.set_postfix({name: f"{values[-1]:.4g}" for name, values in losses.items()}, refresh=False)
            bar.update()

        yield show
