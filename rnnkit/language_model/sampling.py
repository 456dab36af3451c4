"""Text that a language model writes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import rnnkit
from rnnkit.errors import message
from rnnkit.language_model.model import TextModel
from rnnkit.types import Precision


def generate(
    model: TextModel,
    prompt: bytes,
    temperature: float,
    seed: int | None = None,
    top_p: float = 1.0,
    precision: Precision | None = None,
) -> Iterator[int]:
    """Return an iterator over the bytes that the model goes on with, one at a time and without end.

    Parameters
    ----------
    model : TextModel
    prompt : bytes
        What the model has read before, at least one byte.
    temperature : float
        0: always the likeliest byte; 1: drawn from the model's distribution; between: nearer to the likeliest.
    seed : int, optional
        The same seed gives the same bytes.
    top_p : float
        Only the likeliest bytes are drawn, as few as have this share of the probability together at that temperature
        (nucleus sampling, arXiv 1904.09751); above 0, and 1 for all bytes.
    precision : {"bfloat16", "int8"}, optional
        What the weights of the recurrent network are rounded to; see `rnnkit.prepare`.

    Raises
    ------
    ValueError
        The prompt is empty, temperature or top_p is out of range, the weights cannot be rounded so; or, at the byte
        where it happens, the scores are not numbers: nothing can be drawn from them.
    """
    if not prompt:
        raise ValueError(message("generate", "prompt", "have at least one byte", "none"))
    if not 0 <= temperature < np.inf:
        raise ValueError(message("generate", "temperature", "be at least 0 and finite", temperature))
    if not 0 < top_p <= 1:
        raise ValueError(message("generate", "top_p", "be above 0 and at most 1", top_p))
    plan = rnnkit.prepare(model.desc, model.parameters.network, precision=precision)
    return _bytes(model, plan, prompt, temperature, top_p, np.random.default_rng(seed))


def _bytes(
    model: TextModel, plan: rnnkit.Plan, prompt: bytes, temperature: float, top_p: float, rng: np.random.Generator
) -> Iterator[int]:
    hx = cx = None  # zeros
    unread = np.frombuffer(prompt, np.uint8)
    while True:
        for x in model.inputs(unread[:, None]):
            y, hx, cx = plan.step(x, hx, cx)
        scores = model.scores(y)[0].astype(np.float64)
        if np.isnan(scores).any():
            raise ValueError(message("generate", "model", "give scores that are numbers", "NaN", "train it anew"))
        unread = model.alphabet[[draw(scores, temperature, top_p, rng)]]
        yield int(unread[0])


def draw(scores: np.ndarray, temperature: float, top_p: float, rng: np.random.Generator) -> int:
    """Return the index of one of the scores (K,), drawn from their softmax at this temperature."""
    if top_p < 1 and temperature > 0:
        scores = np.where(_likeliest(scores / temperature, top_p), scores, -np.inf)
    # The largest of scores/temperature + Gumbel noise is a draw from their softmax (the Gumbel-max trick).
    return int(np.argmax(scores + temperature * rng.gumbel(size=scores.size)))


def _likeliest(scores: np.ndarray, top_p: float) -> np.ndarray:
    """Say of each score (K,) whether it is among the fewest that have a share of top_p of the softmax."""
    order = np.argsort(-scores, kind="stable")
    shares = np.exp(scores[order] - scores[order[0]])
    before = np.cumsum(shares) - shares
    found = np.empty(scores.size, bool)
    found[order] = before < top_p * shares.sum()
    return found
