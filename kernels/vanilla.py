"""The vanilla cell: h' = act(W x + R h + bW + bR), act = tanh or ReLU (Elman, "Finding Structure in Time", 1990)."""

from typing import NamedTuple

from . import cell as protocol
from .activations import tanh
from .matrix import part


class Vanilla(NamedTuple):
    """One gate; its activated value is the hidden state."""

    hidden_size: int
    relu: bool


@protocol.implements(protocol.input_slots, Vanilla)
def _input_slots(cell):
    return (0,)


@protocol.implements(protocol.recurrent_slots, Vanilla)
def _recurrent_slots(cell):
    return (0,)


@protocol.implements(protocol.recurrent_columns, Vanilla)
def _recurrent_columns(cell):
    return 0, cell.hidden_size


@protocol.implements(protocol.activate, Vanilla)
def _activate(
    cell, gates, at, first, last, cells, before, next_cells, after, hidden, hidden_before, target, hidden_after
):
    gate = part(gates, at + first, at + last)
    h = part(target, hidden_after + first, hidden_after + last)
    if cell.relu:
        zero = gates.dtype.type(0)
        for j in range(last - first):
            value = zero if gate[j] < zero else gate[j]
            gate[j] = value
            h[j] = value
    else:
        for j in range(last - first):
            value = tanh(gate[j])
            gate[j] = value
            h[j] = value


@protocol.implements(protocol.differentiate, Vanilla)
def _differentiate(
    cell, gates, at, dgates, dat, first, last, dh, dh_at, cells, before, after, dcells, dc_at, hidden, hidden_before,
    carry, carry_at
):
    gate = part(gates, at + first, at + last)
    dgate = part(dgates, dat + first, dat + last)
    incoming = part(dh, dh_at + first, dh_at + last)
    zero, one = gates.dtype.type(0), gates.dtype.type(1)
    if cell.relu:
        for j in range(last - first):
            dgate[j] = zero if gate[j] <= zero else incoming[j]
    else:
        for j in range(last - first):
            dgate[j] = incoming[j] * (one - gate[j] * gate[j])
