"""Bits per byte: what a model makes of a text."""

from __future__ import annotations

import math

import numpy as np

import rnnkit
from rnnkit.errors import message
from rnnkit.language_model.model import State, TextModel

CONTEXT = 256  # bytes that each row has read before the first of them that counts
ROWS, SHORTEST_ROW, SEQ_LEN = 64, 256, 128


def bits_per_byte(model: TextModel, text: bytes, before: bytes = b"", context: int = CONTEXT) -> float:
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

    nats, state = 0.0, State()
    for first in range(-context, row_size, SEQ_LEN):
        steps = np.arange(first, min(first + SEQ_LEN, row_size))[:, None]  # 0 is the first that counts
        places = steps + starts
        y, *state = rnnkit.infer(model.desc, model.parameters.network, model.inputs(data[places + context]), *state)
        inside = (steps >= 0) & (places < len(text))
        nats += model.nats(y[inside], data[places[inside] + context + 1])
    return nats / math.log(2) / len(text)
