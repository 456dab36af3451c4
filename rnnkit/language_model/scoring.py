"""What a model makes of a text, in bits per byte."""

from __future__ import annotations

import math

import numpy as np

import rnnkit
from rnnkit.language_model.model import State, TextModel, softmax_loss


def held_out_bits(model: TextModel, text: bytes, before: bytes, num_rows: int = 64, seq_len: int = 128) -> float:
    """Return the model's bits per byte on a text, every byte of it predicted once.

    The text is cut into `num_rows` rows that run side by side, each from a zero state: what a row's first bytes lose by
    that counts against the model.

    Parameters
    ----------
    text : bytes
        At least one byte.
    before : bytes
        What precedes the text; its last byte is the input that the first prediction is made from.
    num_rows, seq_len : int
        Size of the batches; they decide speed and memory.
    """
    row_size = max(256, -(-len(text) // num_rows))
    num_rows = -(-len(text) // row_size)
    data = np.zeros(num_rows * row_size + 1, np.uint8)
    data[: len(text) + 1] = np.frombuffer(before[-1:] + text, np.uint8)
    inputs = data[:-1].reshape(num_rows, row_size).T
    targets = data[1:].reshape(num_rows, row_size).T
    row_lengths = np.full(num_rows, row_size)
    row_lengths[-1] = len(text) - (num_rows - 1) * row_size

    nats, state = 0.0, State()
    for start in range(0, row_size, seq_len):
        chunk = slice(start, start + seq_len)
        x = model.parameters.embedding[inputs[chunk]]
        lengths = np.clip(row_lengths - start, 0, len(x))
        y, *state = rnnkit.infer(model.desc, model.parameters.network, x, *state, lengths=lengths)
        inside = np.arange(len(x))[:, None] < lengths
        nats += softmax_loss(model.scores(y[inside]), targets[chunk][inside]).sum(dtype=np.float64)
    return nats / math.log(2) / len(text)




def bits(model: TextModel, text: bytes) -> float:
    """Return the model's bits per byte on a whole text, which it reads as after the end of a line."""
    return held_out_bits(model, text, b"\n")
