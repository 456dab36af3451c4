"""Sampling of text from a language model."""

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
    """Return an endless iterator over bytes that continue the prompt.

    Parameters
    ----------
    model : TextModel
    prompt : bytes
        The text to continue, at least one byte.
    temperature : float
        0: always the most likely byte; 1: a sample of the model's distribution; lower values prefer likely bytes.
    seed : int, optional
        The same seed gives the same bytes.
    top_p : float
        Nucleus sampling (arXiv 1904.09751): sample only from the fewest most likely bytes with at least this total
        probability at the temperature. Above 0; 1 for all bytes.
    precision : {"bfloat16", "bfloat16-native", "int8"}, optional
        Quantize the weights of the recurrent network; see `rnnkit.prepare`.

    Raises
    ------
    ValueError
        The prompt is empty, temperature or top_p is out of range, or the weights cannot be quantized. The iterator
        raises it if the model's scores are NaN.
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
            raise ValueError(message("generate", "model", "give scores that are numbers", "NaN", "train it again"))
        unread = model.alphabet[[draw(scores, temperature, top_p, rng)]]
        yield int(unread[0])


def draw(scores: np.ndarray, temperature: float, top_p: float, rng: np.random.Generator) -> int:
    """Sample an index of the scores (K,) from their softmax at this temperature."""
    if top_p < 1 and temperature > 0:
        scores = np.where(_likeliest(scores / temperature, top_p), scores, -np.inf)
    # The argmax of scores/temperature + Gumbel noise is a sample of their softmax (the Gumbel-max trick).
    return int(np.argmax(scores + temperature * rng.gumbel(size=scores.size)))


def _likeliest(scores: np.ndarray, top_p: float) -> np.ndarray:
    """Return, for each score (K,), whether it is one of the fewest that have a share of top_p of the softmax."""
    order = np.argsort(-scores, kind="stable")
    shares = np.exp(scores[order] - scores[order[0]])
    before = np.cumsum(shares) - shares
    found = np.empty(scores.size, bool)
    found[order] = before < top_p * shares.sum()
    return found
