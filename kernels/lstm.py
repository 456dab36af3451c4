"""The LSTM cell (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

i, f, o = sigmoid(W x + R h + bW + bR), g = tanh(same); c' = f*c + i*g, clipped if asked for; h' = o*tanh(c').
"""

from typing import NamedTuple

import numpy as np

from . import cell as protocol
from .activations import sigmoid, tanh
from .matrix import part
from .simd import fma


class LSTM(NamedTuple):
    """Gates i, f, g, o; with a projection a fifth column holds o*tanh(c'), which the projection multiplies."""

    hidden_size: int
    clipped: bool
    low: np.floating
    high: np.floating


@protocol.implements(protocol.input_slots, LSTM)
def _input_slots(cell):
    return 0, cell.hidden_size, 2 * cell.hidden_size, 3 * cell.hidden_size


@protocol.implements(protocol.recurrent_slots, LSTM)
def _recurrent_slots(cell):
    return 0, cell.hidden_size, 2 * cell.hidden_size, 3 * cell.hidden_size


@protocol.implements(protocol.recurrent_columns, LSTM)
def _recurrent_columns(cell):
    return 0, 4 * cell.hidden_size


@protocol.implements(protocol.activate, LSTM)
def _activate(
    cell, gates, at, first, last, cells, before, next_cells, after, hidden, hidden_before, target, hidden_after
):
    size = cell.hidden_size
    i_gate = part(gates, at + first, at + last)
    f_gate = part(gates, at + size + first, at + size + last)
    g_gate = part(gates, at + 2 * size + first, at + 2 * size + last)
    o_gate = part(gates, at + 3 * size + first, at + 3 * size + last)
    c_before = part(cells, before + first, before + last)
    c_after = part(next_cells, after + first, after + last)
    h = part(target, hidden_after + first, hidden_after + last)
    for j in range(last - first):
        i, f, g, o = sigmoid(i_gate[j]), sigmoid(f_gate[j]), tanh(g_gate[j]), sigmoid(o_gate[j])
        c = fma(f, c_before[j], i * g)
        if cell.clipped:
            c = cell.low if c < cell.low else c
            c = cell.high if c > cell.high else c
        i_gate[j], f_gate[j], g_gate[j], o_gate[j] = i, f, g, o
        c_after[j] = c
    for j in range(last - first):  # a loop of its own: see `cell.activate`
        h[j] = o_gate[j] * tanh(c_after[j])


@protocol.implements(protocol.differentiate, LSTM)
def _differentiate(
    cell, gates, at, dgates, dat, first, last, dh, dh_at, cells, before, after, dcells, dc_at, hidden, hidden_before,
    carry, carry_at
):
    size = cell.hidden_size
    zero, one = gates.dtype.type(0), gates.dtype.type(1)
    i_gate = part(gates, at + first, at + last)
    f_gate = part(gates, at + size + first, at + size + last)
    g_gate = part(gates, at + 2 * size + first, at + 2 * size + last)
    o_gate = part(gates, at + 3 * size + first, at + 3 * size + last)
    di_gate = part(dgates, dat + first, dat + last)
    df_gate = part(dgates, dat + size + first, dat + size + last)
    dg_gate = part(dgates, dat + 2 * size + first, dat + 2 * size + last)
    do_gate = part(dgates, dat + 3 * size + first, dat + 3 * size + last)
    c_before = part(cells, before + first, before + last)
    c_after = part(cells, after + first, after + last)
    incoming = part(dh, dh_at + first, dh_at + last)
    dc = part(dcells, dc_at + first, dc_at + last)
    for j in range(last - first):  # a loop of its own: see `cell.activate`
        do_gate[j] = tanh(c_after[j])
    for j in range(last - first):
        i, f, g, o, t = i_gate[j], f_gate[j], g_gate[j], o_gate[j], do_gate[j]
        draw = fma(incoming[j] * o, one - t * t, dc[j])
        if cell.clipped:  # the clipped value lies on a bound exactly where the raw one was not strictly inside
            draw = zero if c_after[j] <= cell.low or c_after[j] >= cell.high else draw
        di_gate[j] = draw * g * (i * (one - i))
        df_gate[j] = draw * c_before[j] * (f * (one - f))
        dg_gate[j] = draw * i * (one - g * g)
        do_gate[j] = incoming[j] * t * (o * (one - o))
        dc[j] = draw * f
