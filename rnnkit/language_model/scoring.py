"""Bits per byte of a model on a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np

import rnnkit
from rnnkit.errors import message
from rnnkit.language_model import corpus
from rnnkit.language_model.model import State, TextModel
from rnnkit.training import Adam, clip_gradient_norm
from rnnkit.types import Precision

CONTEXT = 256  # bytes that each row reads before the first byte that is scored
ROWS, MIN_ROW, SEQ_LEN = 64, 256, 128
# Settings of dynamic evaluation, tuned on a manual in English and on a table of airports, after 20 s of training.
ADAPTING_ROWS, MIN_ADAPTING_ROW, ADAPTING_SEQ_LEN = 2, 1024, 32
RATE, WARMUP_STEPS, CLIP = 1.5e-3, 32, 1.0  # learning rate, steps of its warm-up, limit of the gradient's norm


def scores(
    model: TextModel, text: bytes, before: bytes = b"", precision: Precision | None = None
) -> Iterator[tuple[str, float]]:
    """Yield (name, bits per byte) on a text for the model, with dynamic evaluation, too, and for baselines.

    With a precision, also for the model with quantized weights.
    """
    yield "rnnkit", bits_per_byte(model, text, before)
    if precision is not None:
        plan = rnnkit.prepare(model.desc, model.parameters.network, precision=precision)
        yield f"rnnkit, {precision} weights", bits_per_byte(model, text, before, network=plan)
    yield "rnnkit, dynamic evaluation", adaptive_bits_per_byte(model, text, before)
    yield from corpus.baselines(text, before).items()


class Network(Protocol):
    """Anything that runs a model's recurrent network, for example a plan."""

    def infer(self, x: np.ndarray, *states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]: ...


def bits_per_byte(
    model: TextModel, text: bytes, before: bytes = b"", context: int = CONTEXT, *, network: Network | None = None
) -> float:
    """Return the model's bits per byte on a text. It predicts each byte once, from the bytes before it.

    The text is cut into rows, which form a batch. Each row first reads the bytes before it.

    Parameters
    ----------
    text : bytes
        At least one byte.
    before : bytes
        The text before `text`. If it is shorter than `context`, it is padded with newlines at its start.
    context : int
        Number of bytes before its own that a row reads without scoring them.
    network : Network, optional
        Replaces the model's recurrent network, for example by a plan with quantized weights.

    Raises
    ------
    ValueError
        The text is empty.
    """
    if not text:
        raise ValueError(message("bits_per_byte", "text", "have at least one byte", "none"))
    row_size = max(MIN_ROW, -(-len(text) // ROWS))
    starts = np.arange(0, len(text), row_size)
    before = (b"\n" * (context + 1) + before)[-context - 1 :]
    data = np.zeros(len(before) + row_size * len(starts), np.uint8)
    data[: len(before) + len(text)] = np.frombuffer(before + text, np.uint8)

    network = network or rnnkit.prepare(model.desc, model.parameters.network)
    nats, state = 0.0, State()
    for start in range(-context, row_size, SEQ_LEN):
        steps = np.arange(start, min(start + SEQ_LEN, row_size))[:, None]  # 0 is the first that is scored
        places = steps + starts
        y, *state = network.infer(model.inputs(data[places + context]), *state)
        inside = (steps >= 0) & (places < len(text))
        nats += model.nats(y[inside], data[places[inside] + context + 1])
    return nats / math.log(2) / len(text)


def adaptive_bits_per_byte(model: TextModel, text: bytes, before: bytes = b"", context: int = CONTEXT) -> float:
    """Return the model's bits per byte with dynamic evaluation: a copy of the model learns from the text it has read.

    The text is cut into a few rows, which form a batch, and the copy learns after every few steps. Each byte is
    predicted before the copy learns from it or from later bytes. A decoder that has the model can repeat this, so the
    result is the size of a code, comparable with zlib and LZMA.

    Parameters
    ----------
    model : TextModel
        Not changed.
    text : bytes
        At least one byte.
    before : bytes
        The text before `text`. Every row first reads its last bytes, padded with newlines at the start if it is short.
    context : int
        Number of these bytes.

    Raises
    ------
    ValueError
        The text is empty.
    """
    if not text:
        raise ValueError(message("adaptive_bits_per_byte", "text", "have at least one byte", "none"))
    model = model.copy()
    num_rows = max(1, min(ADAPTING_ROWS, len(text) // MIN_ADAPTING_ROW))
    row_size = len(text) // num_rows
    data = np.frombuffer(text, np.uint8)
    rows, rest = data[: num_rows * row_size].reshape(num_rows, row_size).T, data[num_rows * row_size :]
    read = np.frombuffer((b"\n" * (context + 1) + before)[-context - 1 :], np.uint8)
    inputs = np.concatenate([np.broadcast_to(read[-1], (1, num_rows)), rows[:-1]])

    _, *state = rnnkit.infer(model.desc, model.parameters.network, model.inputs(read[:-1, None]))
    state = State(*state).map(lambda states: np.repeat(states, num_rows, axis=1))
    blocks = [block for block, _ in model.weight_decay_groups]
    optimizer = Adam([model.parameters.flat[block] for block in blocks])
    nats = 0.0
    for step, start in enumerate(range(0, row_size, ADAPTING_SEQ_LEN)):
        chunk = slice(start, start + ADAPTING_SEQ_LEN)
        model.gradient.buffer.fill(0)
        added, state = model.add_gradient(inputs[chunk], rows[chunk], state, count=inputs[chunk].size)
        nats += added
        clip_gradient_norm(model.gradient.flat, CLIP)
        optimizer.step([model.gradient.flat[block] for block in blocks], RATE * min(1.0, (step + 1) / WARMUP_STEPS))
    last = np.concatenate([rows[-1:, -1], rest])  # the rest has fewer bytes than there are rows
    y, *_ = rnnkit.infer(
        model.desc,
        model.parameters.network,
        model.inputs(last[:-1, None]),
        *state.map(lambda states: np.ascontiguousarray(states[:, -1:])),
    )
    return (nats + model.nats(y[:, 0], rest)) / math.log(2) / len(text)
