"""The time loop backward: from the gradient of the output to those of the weights, the input and the initial states.

It goes through the sequence a chunk of steps at a time. After the steps of a chunk, whose gates' gradients are still in
the cache, follow the products with all of its rows, for the input and for the weights; those for the input come after
fewer steps, a `span`, where the layer below waits for them. The steps are shared out as in `loop`, the rows of the
input's gradient and the columns of the weights' evenly.
"""

from typing import NamedTuple

import numpy as np
from numba.extending import overload

from .loop import ROWS, Sizes, States, rows_of_step, shares_rows
from .machine.barrier import follow, gather, meet, publish, report
from .machine.gemm import columns_of, depth_block_of, product, vectors_of
from .machine.jit import OPTIONS, inner, kernel
from .machine.matrix import Matrix, offset, part
from .machine.partition import claim, divide, share, turns
from .machine.registers import plain
from .stages import (
    carries_hidden,
    complete_gradient,
    differentiate,
    input_slots,
    multiplied_slot,
    recurrent_slots,
    second_slots,
)
from .weight_gradient import END, ROOM, add_weight_gradients, pack_sources, pack_weights, terms_of


class Gradients(NamedTuple):
    """What flows back: dy (empty without one), dx, a chunk's gradients of the gates with those of the projection's sum
    behind them in a row, and per batch row those of the step's output units, of the hidden state and of the cell."""

    dy: Matrix
    dx: Matrix
    gates: Matrix
    output: Matrix
    hidden: Matrix
    cells: Matrix


class StrandBack(NamedTuple):
    """One direction of one layer; `sources` are what the products of the forward pass multiplied, `places` those of
    what `work` has room for. Step t of a call has the positions starts[t]:starts[t + 1] of the row lists."""

    reverse: bool
    sizes: Sizes
    starts: np.ndarray
    products: tuple
    sources: tuple
    gates: Matrix
    states: States
    gradients: Gradients
    work: np.ndarray
    places: np.ndarray


@inner
def _add_output_gradient(target, carry, dy, first_row, last_row, first, last):
    """target = carry + dy for a range of columns."""
    for row in range(first_row, last_row):
        to, source = offset(target, row), offset(carry, row)
        total, carried = part(target.data, to + first, to + last), part(carry.data, source + first, source + last)
        if dy.data.size > 0:
            at = offset(dy, row)
            own = part(dy.data, at + first, at + last)
            for j in range(last - first):
                total[j] = carried[j] + own[j]
        else:
            for j in range(last - first):
                total[j] = carried[j]


def _finish(cell, operands, units, first_row, last_row, panels, zeros, piece, member, members, sync):
    """The gradient of what R multiplies within the step, and the stages behind it."""


@overload(_finish, jit_options=OPTIONS)
def _finish_of(cell, operands, units, first_row, last_row, panels, zeros, piece, member, members, sync):
    def finish(cell, operands, units, first_row, last_row, panels, zeros, piece, member, members, sync):
        dgates = operands[5]
        slots = second_slots(cell, units)
        source = Matrix(dgates.data, dgates.rows, dgates.start + slots[0], dgates.stride)
        target = Matrix(dgates.data, dgates.rows, dgates.start + multiplied_slot(cell, units)[0], dgates.stride)
        meet(sync, members)  # all of the gates' gradients are there
        for turn in range(turns(vectors_of(zeros, units), piece, members)):
            first_vector, last_vector = claim(turn, vectors_of(zeros, units), piece, member, members, sync)
            product(
                target, source, first_row, last_row, len(slots) * units, panels, first_vector, last_vector, units, (0,),
                zeros, plain(True)
            )
            first, last = columns_of(zeros, first_vector, last_vector, units)
            complete_gradient(cell, operands, units, first_row, last_row, first, last)

    def nothing(cell, operands, units, first_row, last_row, panels, zeros, piece, member, members, sync):
        pass

    return finish if cell.instance_class.declaration.multiplied else nothing


@inner
def _step_back(
    cell, sizes, terms, zeros, gates, states, gradients, first_row, last_row, piece, member, members, sync
):
    """One time step of the rows: the gates' gradients, and the gradients of the states before the step."""
    dgates, output, carry, dy = gradients.gates, gradients.output, gradients.hidden, gradients.dy
    operands = (
        gates, states.hidden, states.hidden, states.cells, states.next_cells, dgates, output, carry, gradients.cells
    )
    units, outputs = vectors_of(zeros, sizes.hidden), vectors_of(zeros, sizes.output)
    projection = terms.projection.packed
    total = Matrix(dgates.data, dgates.rows, dgates.start + dgates.stride - sizes.output, dgates.stride)
    if projection.size > 0:  # the gradient of its sum comes first, all of it
        first_vector, last_vector = share(outputs, member, members)
        first, last = columns_of(zeros, first_vector, last_vector, sizes.output)
        _add_output_gradient(total, carry, dy, first_row, last_row, first, last)
        meet(sync, members)
    for turn in range(turns(units, piece, members)):
        first_vector, last_vector = claim(turn, units, piece, member, members, sync)
        first, last = columns_of(zeros, first_vector, last_vector, sizes.hidden)
        if projection.size > 0:
            product(
                output, total, first_row, last_row, sizes.output, projection, first_vector, last_vector, sizes.hidden,
                (0,), zeros, plain(True)
            )
        else:
            _add_output_gradient(output, carry, dy, first_row, last_row, first, last)
        differentiate(cell, operands, sizes.hidden, first_row, last_row, first, last)
    _finish(cell, operands, sizes.hidden, first_row, last_row, terms.second.packed, zeros, piece, member, members, sync)
    meet(sync, members)
    slots = recurrent_slots(cell, sizes.hidden)
    recurrent = Matrix(dgates.data, dgates.rows, dgates.start + slots[0], dgates.stride)
    for turn in range(turns(outputs, piece, members)):
        first_vector, last_vector = claim(turn, outputs, piece, member, members, sync)
        product(
            carry, recurrent, first_row, last_row, len(slots) * sizes.hidden, terms.recurrent.packed, first_vector,
            last_vector, sizes.output, (0,), zeros, not carries_hidden(cell)
        )
    if piece > 0:
        meet(sync, members)


@inner
def _input_gradient(cell, sizes, term, zeros, dx, dgates, first_row, last_row):
    """dx of the rows = the gates' gradients . W; without W ("skip" input) their sum."""
    if sizes.input > 0:
        source = Matrix(dgates.data, dgates.rows, dgates.start + term.first, dgates.stride)
        product(
            dx, source, first_row, last_row, term.weight.rows.size, term.packed, plain(0),
            vectors_of(zeros, sizes.input), sizes.input, (0,), zeros, plain(True)
        )
        return
    for row in range(first_row, last_row):
        to, source = offset(dx, row), offset(dgates, row)
        total = part(dx.data, to, to + sizes.hidden)
        for j in range(sizes.hidden):
            total[j] = 0
        for slot in input_slots(cell, sizes.hidden):
            gate = part(dgates.data, source + slot, source + slot + sizes.hidden)
            for j in range(sizes.hidden):
                total[j] += gate[j]


@inner
def _steps_back(
    cell, strand, flow, terms, starts, low, high, bounds, piece, zeros, member, members, sync
):
    """The steps low..high of a strand, last step first, and the gradient of their input."""
    sizes, reverse = strand.sizes, strand.reverse
    crew_member, crew = (0, 1) if shares_rows(bounds, members) else (member, members)
    for index in range(low, high):
        t = index if reverse else low + high - 1 - index
        first_row, last_row = rows_of_step(starts, t, bounds, member, members)
        _step_back(
            cell, sizes, terms, zeros, strand.gates, strand.states, flow, first_row, last_row, piece, crew_member, crew,
            sync
        )
    meet(sync, members)
    rows = starts[high] - starts[low]
    for turn in range(turns(rows, ROWS, members)):
        first_row, last_row = claim(turn, rows, ROWS, member, members, sync)
        _input_gradient(
            cell, sizes, terms.input, zeros, flow.dx, flow.gates, starts[low] + first_row, starts[low] + last_row
        )


@inner
def _run_back(
    cell, strand, bounds, piece, chunk, span, batch_size, begins, w, dw, zeros, columns, leads, follows, member,
    members, sync, whole_sync
):
    """The steps of one strand, last step first, `chunk` steps at a time, which another may lead or follow."""
    gradients, work, places, starts = strand.gradients, strand.work, strand.places, strand.starts
    steps = starts.size - 1
    terms = terms_of(strand.products, strand.sources, w, work, places)
    own = part(work, places[ROOM], places[END])
    if begins:
        pack_weights(terms, member, members)
        meet(sync, members)
    for done in range(0, steps, chunk):
        count = min(chunk, steps - done)
        low = done if strand.reverse else steps - done - count
        high = low + count
        held = gradients.gates
        dgates = Matrix(held.data, held.rows, held.start - low * batch_size * held.stride, held.stride)
        flow = Gradients(gradients.dy, gradients.dx, dgates, gradients.output, gradients.hidden, gradients.cells)
        for earlier in range(0, count, span):
            now = min(earlier + span, count)
            if follows:
                follow(whole_sync, done + now)
            first, last = (low + earlier, low + now) if strand.reverse else (high - now, high - earlier)
            _steps_back(
                cell, strand, flow, terms, starts, first, last, bounds, piece, zeros, member, members, sync
            )
            if leads:
                meet(sync, members)
                if member == 0:
                    report(whole_sync, done + now)
        for begin in range(starts[low], starts[high], depth_block_of(work)):
            end = min(begin + depth_block_of(work), starts[high])
            pack_sources(terms, begin, end, member, members)
            meet(sync, members)
            add_weight_gradients(terms, dw, dgates, begin, end, own, columns, member, members, sync)
            meet(sync, members)


@kernel
def backward(
    cell, strands, count, stacked, bounds, piece, apart, span, chunk, batch_size, begins, w, dw, zeros, columns, member,
    members, sync
):
    """The steps before of the first `count` strands: dw (added to), dx, and in place of the following states' gradients
    those of the states before. If they are `stacked`, the dx of the first is the dy of the second.

    Calls go from the last steps to the first, whole chunks at a time; the one that `begins` packs the weights for all.
    The rows of a strand's gradients.gates are numbered t*batch_size + n; it holds one chunk, and each overwrites the
    last.
    """
    publish(sync, member, members)
    members = gather(sync, member, members)
    first, last, crew_member, crew, crew_sync = divide(count, apart and piece == 0, member, members, sync)
    abreast = stacked and last - first < count
    for index in range(first, last):
        _run_back(
            cell, strands[index], bounds, piece, chunk, span if abreast else chunk, batch_size, begins, w, dw, zeros,
            columns, abreast and index == 0, abreast and index > 0, crew_member, crew, crew_sync, sync
        )
    meet(sync, members)


@kernel
def add_rows(target, addend, count, member, members, sync):
    """target += addend, for `count` rows of two row lists."""
    publish(sync, member, members)
    members = gather(sync, member, members)
    first_row, last_row = share(count, member, members)
    for row in range(first_row, last_row):
        to, source = offset(target, row), offset(addend, row)
        total = part(target.data, to, to + target.stride)
        own = part(addend.data, source, source + target.stride)
        for j in range(target.stride):
            total[j] += own[j]
    meet(sync, members)
