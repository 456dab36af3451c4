"""The time loop of a layer, written once for every cell; its gradient is in `loop_gradient`.

The rows of a batch are listed step by step: at each step only those whose sequence is that long, the longest first, so
padding is never read. The work is shared out in one of two ways. By units: a member computes the products and the gates
of its panels, and the members meet once a step, where the new hidden state (backward: the gates' gradients) is
complete; where that is much work, they take `piece` panels at a time, of anybody's. By rows (`bounds`): a member runs
its own rows of the batch, which nobody else needs, without meeting.

A call runs one strand or two: a direction of a layer each. Two may each have half of the members, where their number is
even: the directions of one layer are independent; of two layers of one direction, the upper follows the lower a `span`
of steps behind.
"""

from typing import NamedTuple

import numpy as np
from numba.extending import overload

from .machine.barrier import follow, gather, meet, publish, report
from .machine.gemm import columns_of, product, vectors_of
from .machine.jit import OPTIONS, inner, kernel
from .machine.matrix import Matrix, offset, part
from .machine.partition import claim, divide, turns
from .machine.registers import plain
from .products import BIAS, END, panels_of
from .stages import activate, apart_slots, complete, input_slots, multiplied_slot, recurrent_slots, second_slots

# Rows that a member takes at a time where a block is shared by rows. All weights are read for them, which with 96 takes
# a few percent of the time, with 192 nothing (Zen 3, H = 512 and 800)
ROWS = 192


class Sizes(NamedTuple):
    """Sizes of one layer: hidden_size H, output_size P (H without a projection), input_size of its input product."""

    hidden: int
    output: int
    input: int


class States(NamedTuple):
    """Hidden states and cells before and after a step."""

    hidden: Matrix
    next_hidden: Matrix
    cells: Matrix
    next_cells: Matrix


class Strand(NamedTuple):
    """One direction of one layer: its sizes, input, places of its packed weights, gates and states.

    Step t of a call has the positions starts[t]:starts[t + 1] of the row lists.
    """

    reverse: bool
    sizes: Sizes
    starts: np.ndarray
    x: Matrix
    places: np.ndarray
    gates: Matrix
    states: States


@inner
def project_inputs(cell, sizes, x, panels, bias, gates, first_row, last_row, first_vector, last_vector):
    """Gates of the rows = bias + x . W; without W ("skip" input) every gate receives x itself."""
    slots = input_slots(cell, sizes.hidden)
    if sizes.input > 0:
        product(
            gates, x, first_row, last_row, sizes.input, panels.input, first_vector, last_vector, sizes.hidden, slots,
            bias, plain(True)
        )
        return
    first, last = columns_of(bias, first_vector, last_vector, sizes.hidden)
    for row in range(first_row, last_row):
        source, target = offset(x, row), offset(gates, row)
        values = part(x.data, source + first, source + last)
        for slot in slots:
            gate = part(gates.data, target + slot + first, target + slot + last)
            start = part(bias, slot + first, slot + last)
            for j in range(last - first):
                gate[j] = start[j] + values[j]


@inner
def _fill(gates, slot, bias, first_row, last_row, first, last):
    """The slot's columns of the bias in each row."""
    start = part(bias, slot + first, slot + last)
    for row in range(first_row, last_row):
        at = offset(gates, row) + slot
        gate = part(gates.data, at + first, at + last)
        for j in range(last - first):
            gate[j] = start[j]


def _finish(cell, operands, units, bias, first_row, last_row, panels, piece, member, members, sync):
    """The product of R with what a stage wrote, and the stages behind it."""


@overload(_finish, jit_options=OPTIONS)
def _finish_of(cell, operands, units, bias, first_row, last_row, panels, piece, member, members, sync):
    def finish(cell, operands, units, bias, first_row, last_row, panels, piece, member, members, sync):
        gates = operands[0]
        multiplied = Matrix(gates.data, gates.rows, gates.start + multiplied_slot(cell, units)[0], gates.stride)
        meet(sync, members)  # all of what R multiplies is there
        for turn in range(turns(vectors_of(gates.data, units), piece, members)):
            first_vector, last_vector = claim(turn, vectors_of(gates.data, units), piece, member, members, sync)
            product(
                gates, multiplied, first_row, last_row, units, panels, first_vector, last_vector, units,
                second_slots(cell, units), bias, plain(False)
            )
            first, last = columns_of(gates.data, first_vector, last_vector, units)
            complete(cell, operands, units, first_row, last_row, first, last)

    def nothing(cell, operands, units, bias, first_row, last_row, panels, piece, member, members, sync):
        pass

    return finish if cell.instance_class.declaration.multiplied else nothing


@inner
def step(
    cell, sizes, panels, bias, zeros, gates, states, first_row, last_row, piece, member, members, sync
):
    """One time step of the rows, whose gates hold their input products; `piece` panels at a time (see `claim`)."""
    hidden, target = states.hidden, states.next_hidden
    projected = panels.projection.size > 0
    if projected:  # the last column of the gates takes what the projection multiplies
        target = Matrix(gates.data, gates.rows, gates.start + gates.stride - sizes.hidden, gates.stride)
    operands = gates, hidden, target, states.cells, states.next_cells
    for turn in range(turns(vectors_of(bias, sizes.hidden), piece, members)):
        first_vector, last_vector = claim(turn, vectors_of(bias, sizes.hidden), piece, member, members, sync)
        first, last = columns_of(bias, first_vector, last_vector, sizes.hidden)
        for slot in apart_slots(cell, sizes.hidden):  # the product is all that they hold, and adds to them
            _fill(gates, slot, bias, first_row, last_row, first, last)
        product(
            gates, hidden, first_row, last_row, sizes.output, panels.recurrent, first_vector, last_vector,
            sizes.hidden, recurrent_slots(cell, sizes.hidden), bias, plain(False)
        )
        activate(cell, operands, sizes.hidden, first_row, last_row, first, last)
    _finish(cell, operands, sizes.hidden, bias, first_row, last_row, panels.second, piece, member, members, sync)
    if projected:
        meet(sync, members)
        for turn in range(turns(vectors_of(bias, sizes.output), piece, members)):
            first_vector, last_vector = claim(turn, vectors_of(bias, sizes.output), piece, member, members, sync)
            product(
                states.next_hidden, target, first_row, last_row, sizes.hidden, panels.projection, first_vector,
                last_vector, sizes.output, (0,), zeros, plain(True)
            )


@inner
def shares_rows(bounds, members):
    """Whether each member has its own rows of the batch, from bounds[member] to bounds[member + 1] of every step."""
    return members > 1 and bounds.size == members + 1


@inner
def rows_of_step(starts, t, bounds, member, members):
    """[first, last) of the positions at step t that the member works on."""
    if not shares_rows(bounds, members):
        return starts[t], starts[t + 1]
    active = starts[t + 1] - starts[t]
    return starts[t] + min(bounds[member], active), starts[t] + min(bounds[member + 1], active)


@inner
def _run(
    cell, strand, bounds, piece, packed, zeros, chunk, held, batch_size, leads, follows, member, members, sync,
    whole_sync
):
    """The steps of one strand, `chunk` steps of input products at a time, which another may lead or follow."""
    sizes, x, places, gates, reverse = strand.sizes, strand.x, strand.places, strand.gates, strand.reverse
    starts = strand.starts
    panels, bias = panels_of(packed, places), part(packed, places[BIAS], places[END])
    steps = starts.size - 1
    by_rows = shares_rows(bounds, members)
    crew_member, crew = (0, 1) if by_rows else (member, members)
    for first in range(0, steps, chunk):
        last = min(first + chunk, steps)
        low, high = (steps - last, steps - first) if reverse else (first, last)
        skipped = low if held < steps else 0
        buffer = Matrix(gates.data, gates.rows, gates.start - skipped * batch_size * gates.stride, gates.stride)
        vectors, rows = vectors_of(bias, sizes.hidden), starts[high] - starts[low]
        if follows:
            follow(whole_sync, last)
        if by_rows:  # the input products of a chunk are one block all the same
            for turn in range(turns(rows, ROWS, members)):
                first_row, last_row = claim(turn, rows, ROWS, member, members, sync)
                project_inputs(
                    cell, sizes, x, panels, bias, buffer, starts[low] + first_row, starts[low] + last_row, plain(0),
                    vectors
                )
        else:
            for turn in range(turns(vectors, piece, members)):
                first_vector, last_vector = claim(turn, vectors, piece, member, members, sync)
                project_inputs(
                    cell, sizes, x, panels, bias, buffer, starts[low], starts[high], first_vector, last_vector
                )
        if by_rows or piece > 0:
            meet(sync, members)
        for index in range(low, high):
            t = low + high - 1 - index if reverse else index
            first_row, last_row = rows_of_step(starts, t, bounds, member, members)
            step(
                cell, sizes, panels, bias, zeros, buffer, strand.states, first_row, last_row, piece, crew_member,
                crew, sync
            )
            meet(sync, crew)
        if by_rows:
            meet(sync, members)
        if leads and member == 0:
            report(whole_sync, last)


@kernel
def forward(
    cell, strands, count, stacked, bounds, piece, apart, span, chunk, packed, zeros, held, batch_size, member, members,
    sync
):
    """The next steps of the first `count` strands; if they are `stacked`, the second reads what the first writes.

    The rows of a strand's gates are numbered t*batch_size + n. They hold the `held` steps that they are counted from:
    all of the call, or one chunk, and each overwrites the last.
    """
    publish(sync, member, members)
    members = gather(sync, member, members)
    first, last, crew_member, crew, crew_sync = divide(count, apart and piece == 0, member, members, sync)
    abreast = stacked and last - first < count
    chunk = min(span, chunk) if abreast else chunk
    for index in range(first, last):
        _run(
            cell, strands[index], bounds, piece, packed, zeros, chunk, held, batch_size, abreast and index == 0,
            abreast and index > 0, crew_member, crew, crew_sync, sync
        )
    meet(sync, members)
