"""The GRU cell in both published forms; r, z = sigmoid(W x + R h + bW + bR), h' = (1-z)*n + z*h.

Reset after the product (arXiv 1406.1078v1, cuDNN, PyTorch): n = tanh(Wn x + bWn + r*(Rn h + bRn)).
Reset before the product (arXiv 1406.1078v3, ONNX default):  n = tanh(Wn x + bWn + Rn (r*h) + bRn).
"""

from typing import NamedTuple

from . import cell as protocol
from .activations import sigmoid, tanh
from .barrier import meet
from .gemm import columns_of, product, vectors_of
from .matrix import Matrix, offset, part
from .sharing import claim, turns
from .simd import fma, plain


class ResetAfterGRU(NamedTuple):
    """Columns n, r, z and Rn h + bRn: in this order input gates and recurrent gates are neighbours each."""

    hidden_size: int


class ResetBeforeGRU(NamedTuple):
    """Columns n, r, z and r*h, which the second product of the step multiplies."""

    hidden_size: int


@protocol.implements(protocol.input_slots, ResetAfterGRU, ResetBeforeGRU)
def _input_slots(cell):
    return cell.hidden_size, 2 * cell.hidden_size, 0 * cell.hidden_size


@protocol.implements(protocol.carries_state, ResetAfterGRU, ResetBeforeGRU)
def _carries_state(cell):
    return True


@protocol.implements(protocol.recurrent_slots, ResetAfterGRU)
def _after_recurrent_slots(cell):
    return cell.hidden_size, 2 * cell.hidden_size, 3 * cell.hidden_size


@protocol.implements(protocol.recurrent_columns, ResetAfterGRU)
def _after_recurrent_columns(cell):
    return cell.hidden_size, 3 * cell.hidden_size


@protocol.implements(protocol.begin, ResetAfterGRU)
def _after_begin(cell, gates, at, bias, first, last):
    column = 3 * cell.hidden_size
    gate = part(gates, at + column + first, at + column + last)
    start = part(bias, column + first, column + last)
    for j in range(last - first):
        gate[j] = start[j]


@protocol.implements(protocol.activate, ResetAfterGRU)
def _after_activate(
    cell, gates, at, first, last, cells, before, next_cells, after, hidden, hidden_before, target, hidden_after
):
    size = cell.hidden_size
    n_gate = part(gates, at + first, at + last)
    r_gate = part(gates, at + size + first, at + size + last)
    z_gate = part(gates, at + 2 * size + first, at + 2 * size + last)
    recurrent = part(gates, at + 3 * size + first, at + 3 * size + last)
    h_before = part(hidden, hidden_before + first, hidden_before + last)
    h = part(target, hidden_after + first, hidden_after + last)
    one = gates.dtype.type(1)
    for j in range(last - first):
        r_gate[j], z_gate[j] = sigmoid(r_gate[j]), sigmoid(z_gate[j])
    for j in range(last - first):  # a loop of its own: see `cell.activate`
        z, n = z_gate[j], tanh(fma(r_gate[j], recurrent[j], n_gate[j]))
        n_gate[j] = n
        h[j] = fma(z, h_before[j], (one - z) * n)


@protocol.implements(protocol.differentiate, ResetAfterGRU)
def _after_differentiate(
    cell, gates, at, dgates, dat, first, last, dh, dh_at, cells, before, after, dcells, dc_at, hidden, hidden_before,
    carry, carry_at
):
    size = cell.hidden_size
    one = gates.dtype.type(1)
    n_gate = part(gates, at + first, at + last)
    r_gate = part(gates, at + size + first, at + size + last)
    z_gate = part(gates, at + 2 * size + first, at + 2 * size + last)
    recurrent = part(gates, at + 3 * size + first, at + 3 * size + last)
    dn_gate = part(dgates, dat + first, dat + last)
    dr_gate = part(dgates, dat + size + first, dat + size + last)
    dz_gate = part(dgates, dat + 2 * size + first, dat + 2 * size + last)
    drecurrent = part(dgates, dat + 3 * size + first, dat + 3 * size + last)
    h_before = part(hidden, hidden_before + first, hidden_before + last)
    incoming = part(dh, dh_at + first, dh_at + last)
    direct = part(carry, carry_at + first, carry_at + last)
    for j in range(last - first):
        n, r, z = n_gate[j], r_gate[j], z_gate[j]
        dn = incoming[j] * (one - z) * (one - n * n)
        dn_gate[j] = dn
        dr_gate[j] = dn * recurrent[j] * (r * (one - r))
        dz_gate[j] = incoming[j] * (h_before[j] - n) * (z * (one - z))
        drecurrent[j] = dn * r
        direct[j] = incoming[j] * z


@protocol.implements(protocol.recurrent_slots, ResetBeforeGRU)
def _before_recurrent_slots(cell):
    return cell.hidden_size, 2 * cell.hidden_size


@protocol.implements(protocol.second_slots, ResetBeforeGRU)
def _before_second_slots(cell):
    return 0, 3 * cell.hidden_size


@protocol.implements(protocol.recurrent_columns, ResetBeforeGRU)
def _before_recurrent_columns(cell):
    return cell.hidden_size, 2 * cell.hidden_size


@protocol.implements(protocol.activate, ResetBeforeGRU)
def _before_activate(
    cell, gates, at, first, last, cells, before, next_cells, after, hidden, hidden_before, target, hidden_after
):
    size = cell.hidden_size
    r_gate = part(gates, at + size + first, at + size + last)
    z_gate = part(gates, at + 2 * size + first, at + 2 * size + last)
    reset = part(gates, at + 3 * size + first, at + 3 * size + last)
    h_before = part(hidden, hidden_before + first, hidden_before + last)
    for j in range(last - first):
        r = sigmoid(r_gate[j])
        r_gate[j] = r
        z_gate[j] = sigmoid(z_gate[j])
        reset[j] = r * h_before[j]


@protocol.implements(protocol.complete, ResetBeforeGRU)
def _before_complete(cell, gates, hidden, target, first_row, last_row, panels, piece, member, members, sync):
    size = cell.hidden_size
    meet(sync, members)  # all of r*h is there
    reset = Matrix(gates.data, gates.rows, gates.start + 3 * size, gates.stride)
    one = gates.data.dtype.type(1)
    for turn in range(turns(vectors_of(gates.data, size), piece, members)):
        first_vector, last_vector = claim(turn, vectors_of(gates.data, size), piece, member, members, sync)
        product(
            gates, reset, first_row, last_row, size, panels, first_vector, last_vector, size, (0,), gates.data,
            plain(False)
        )
        first, last = columns_of(gates.data, first_vector, last_vector, size)
        for row in range(first_row, last_row):
            at = offset(gates, row)
            before = offset(hidden, row)
            after = offset(target, row)
            n_gate = part(gates.data, at + first, at + last)
            z_gate = part(gates.data, at + 2 * size + first, at + 2 * size + last)
            h_before = part(hidden.data, before + first, before + last)
            h = part(target.data, after + first, after + last)
            for j in range(last - first):
                n = tanh(n_gate[j])
                z = z_gate[j]
                n_gate[j] = n
                h[j] = fma(z, h_before[j], (one - z) * n)


@protocol.implements(protocol.differentiate, ResetBeforeGRU)
def _before_differentiate(
    cell, gates, at, dgates, dat, first, last, dh, dh_at, cells, before, after, dcells, dc_at, hidden, hidden_before,
    carry, carry_at
):
    size = cell.hidden_size
    one = gates.dtype.type(1)
    n_gate = part(gates, at + first, at + last)
    z_gate = part(gates, at + 2 * size + first, at + 2 * size + last)
    dn_gate = part(dgates, dat + first, dat + last)
    dz_gate = part(dgates, dat + 2 * size + first, dat + 2 * size + last)
    h_before = part(hidden, hidden_before + first, hidden_before + last)
    incoming = part(dh, dh_at + first, dh_at + last)
    direct = part(carry, carry_at + first, carry_at + last)
    for j in range(last - first):
        n, z = n_gate[j], z_gate[j]
        dn_gate[j] = incoming[j] * (one - z) * (one - n * n)
        dz_gate[j] = incoming[j] * (h_before[j] - n) * (z * (one - z))
        direct[j] = incoming[j] * z


@protocol.implements(protocol.complete_gradient, ResetBeforeGRU)
def _before_complete_gradient(
    cell, gates, dgates, hidden, carry, first_row, last_row, panels, zeros, piece, member, members, sync
):
    size = cell.hidden_size
    meet(sync, members)  # all of dn is there
    dreset = Matrix(dgates.data, dgates.rows, dgates.start + 3 * size, dgates.stride)
    one = gates.data.dtype.type(1)
    for turn in range(turns(vectors_of(gates.data, size), piece, members)):
        first_vector, last_vector = claim(turn, vectors_of(gates.data, size), piece, member, members, sync)
        product(
            dreset, dgates, first_row, last_row, size, panels, first_vector, last_vector, size, (0,), zeros, plain(True)
        )
        first, last = columns_of(gates.data, first_vector, last_vector, size)
        for row in range(first_row, last_row):
            at = offset(gates, row)
            dat = offset(dgates, row)
            before = offset(hidden, row)
            carry_at = offset(carry, row)
            r_gate = part(gates.data, at + size + first, at + size + last)
            dr_gate = part(dgates.data, dat + size + first, dat + size + last)
            dreset_row = part(dgates.data, dat + 3 * size + first, dat + 3 * size + last)
            h_before = part(hidden.data, before + first, before + last)
            direct = part(carry.data, carry_at + first, carry_at + last)
            for j in range(last - first):
                r = r_gate[j]
                dr_gate[j] = dreset_row[j] * h_before[j] * (r * (one - r))
                direct[j] = fma(dreset_row[j], r, direct[j])
