"""Bits per byte: what a model makes of a text."""

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

CONTEXT = 256  # bytes that each row has read before the first of them that counts
ROWS, SHORTEST_ROW, SEQ_LEN = 64, 256, 128
# Of a model that goes on learning; found on a manual in English and on a table of airports, after 20 s of training.
ADAPTING_ROWS, SHORTEST_ADAPTING_ROW, ADAPTING_SEQ_LEN = 2, 1024, 32
RATE, RISE, CLIP = 1.5e-3, 32, 1.0  # of the steps: rate of all but the first few, over which it rises; longest gradient


def scores(
    model: TextModel, text: bytes, before: bytes = b"", precision: Precision | None = None
) -> Iterator[tuple[str, float]]:
    """Yield the bits per byte of the model and of others on a text, each with its name.

    With a precision there is also the model with quantized weights.
    """
    yield "rnnkit", bits_per_byte(model, text, before)
    if precision is not None:
        plan = rnnkit.prepare(model.desc, model.parameters.network, precision=precision)
        yield f"rnnkit, {precision} weights", bits_per_byte(model, text, before, network=plan)
    yield "rnnkit, learning as it reads", adaptive_bits_per_byte(model, text, before)
    yield from corpus.yardsticks(text, before).items()


class Network(Protocol):
    """What runs a model's recurrent network: a plan of it, say."""

    def infer(self, x: np.ndarray, *states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]: ...


def bits_per_byte(
    model: TextModel, text: bytes, before: bytes = b"", context: int = CONTEXT, *, network: Network | None = None
) -> float:
    """Return the model's bits per byte on a text, every byte of it predicted once, from bytes that stand before it.

    The text is cut into rows that run side by side, each of which first reads the bytes in front of it.

    Parameters
    ----------
    text : bytes
        At least one byte.
    before : bytes
        What precedes the text. Where that is shorter than `context`, line ends stand in front of it.
    context : int
        How many bytes a row reads that count in another row, or are of `before`.
    network : Network, optional
        What runs in place of the model's own recurrent network: a plan of it with quantized weights, say.

    Raises
    ------
    ValueError
        The text is empty.
    """
    if not text:
        raise ValueError(message("bits_per_byte", "text", "have at least one byte", "none"))
    row_size = max(SHORTEST_ROW, -(-len(text) // ROWS))
    starts = np.arange(0, len(text), row_size)
    before = (b"\n" * (context + 1) + before)[-context - 1 :]
    data = np.zeros(len(before) + row_size * len(starts), np.uint8)
    data[: len(before) + len(text)] = np.frombuffer(before + text, np.uint8)

    network = network or rnnkit.prepare(model.desc, model.parameters.network)
    nats, state = 0.0, State()
    for start in range(-context, row_size, SEQ_LEN):
        steps = np.arange(start, min(start + SEQ_LEN, row_size))[:, None]  # 0 is the first that counts
        places = steps + starts
        y, *state = network.infer(model.inputs(data[places + context]), *state)
        inside = (steps >= 0) & (places < len(text))
        nats += model.nats(y[inside], data[places[inside] + context + 1])
    return nats / math.log(2) / len(text)


def adaptive_bits_per_byte(model: TextModel, text: bytes, before: bytes = b"", context: int = CONTEXT) -> float:
    """Return the bits per byte of a copy of the model that goes on learning from the text, as compressors do.

    The text is cut into a few rows that are read side by side, some steps at a time. Each byte is predicted before
    anything is learned from it or from what is read later: whoever has the model and decodes the rows side by side can
    do the same, so this is the size of a code, as that of zlib and LZMA is.

    Parameters
    ----------
    model : TextModel
        It is not changed.
    text : bytes
        At least one byte.
    before : bytes
        What precedes the text; every row has read its last bytes, with line ends in front where it is short.
    context : int
        How many of them.

    Raises
    ------
    ValueError
        The text is empty.
    """
    if not text:
        raise ValueError(message("adaptive_bits_per_byte", "text", "have at least one byte", "none"))
    model = model.copy()
    num_rows = max(1, min(ADAPTING_ROWS, len(text) // SHORTEST_ADAPTING_ROW))
    row_size = len(text) // num_rows
    data = np.frombuffer(text, np.uint8)
    rows, rest = data[: num_rows * row_size].reshape(num_rows, row_size).T, data[num_rows * row_size :]
    read = np.frombuffer((b"\n" * (context + 1) + before)[-context - 1 :], np.uint8)
    inputs = np.concatenate([np.broadcast_to(read[-1], (1, num_rows)), rows[:-1]])

    _, *state = rnnkit.infer(model.desc, model.parameters.network, model.inputs(read[:-1, None]))
    state = State(*(None if array is None else np.repeat(array, num_rows, axis=1) for array in state))
    blocks = [block for block, _ in model.decayed]
    optimizer = Adam([model.parameters.flat[block] for block in blocks])
    nats = 0.0
    for step, start in enumerate(range(0, row_size, ADAPTING_SEQ_LEN)):
        chunk = slice(start, start + ADAPTING_SEQ_LEN)
        model.gradient.buffer.fill(0)
        added, state = model.add_gradient(inputs[chunk], rows[chunk], state, count=inputs[chunk].size)
        nats += added
        clip_gradient_norm(model.gradient.flat, CLIP)
        optimizer.step([model.gradient.flat[block] for block in blocks], RATE * min(1.0, (step + 1) / RISE))
    last = np.concatenate([rows[-1:, -1], rest])  # fewer bytes than there are rows, behind the last one
    y, *_ = rnnkit.infer(
        model.desc, model.parameters.network, model.inputs(last[:-1, None]),
        *(None if array is None else np.ascontiguousarray(array[:, -1:]) for array in state),
    )
    return (nats + model.nats(y[:, 0], rest)) / math.log(2) / len(text)

