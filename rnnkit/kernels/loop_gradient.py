"""The time loop backward: from the gradient of the output to those of the weights, the input and the initial states.

It goes through the sequence a chunk of steps at a time. After the steps of a chunk, whose gates' gradients are still in
the cache, follow the products with all of its rows, for the input and for the weights; those for the input come after
fewer steps, the `lag`, where the layer below waits for them. The steps are shared out as in `loop`, the rows of the
input's gradient and the columns of the weights' evenly.
"""

from typing import NamedTuple

import numpy as np
from numba.extending import overload

from .loop import ALONE, FOLLOWS, LEADS, ROWS, LayerPass, fitting, reading, role_of, rows_of_step
from .machine.gemm import columns_of, depth_block_of, product, vectors_of
from .machine.jit import OPTIONS, inner, kernel
from .machine.matrix import Matrix, Range, of_call, part, row_part, shifted
from .machine.partition import next_block, num_claims, partition, split_team, team_of_rows
from .machine.sync import barrier, join, post_call, post_progress, wait_for_progress
from .stages import (
    GradientOperands,
    carries_hidden,
    complete_gradient,
    differentiate,
    input_columns,
    multiplied_column,
    recurrent_columns,
    second_columns,
)
from .weight_gradient import SCRATCH, add_weight_gradients, pack_sources, pack_terms, terms_of


class Gradients(NamedTuple):
    """What flows back through a layer pass, by what it is the gradient of.

    Of y, x and the states what has no data is that of the call.
    """

    y: Matrix
    x: Matrix
    gates: Matrix  # of a chunk, rows t*batch_size + n; behind the gates in a row that of the projection's sum
    output: Matrix  # the units before the projection, of a step
    hidden: Matrix
    cells: Matrix


class LayerPassBack(NamedTuple):
    """One direction of one layer, backward: what it was forward, and what is computed of it."""

    forward: LayerPass
    products: tuple
    gradients: Gradients
    buffer: np.ndarray
    offsets: np.ndarray  # of what the buffer has room for


class Buffers(NamedTuple):
    """What a call is given, flat: the weights, the input, and the gradients of the output (empty for zeros), the input,
    the states (of the cells any array where there are none) and the weights."""

    w: np.ndarray
    x: np.ndarray
    dy: np.ndarray
    dx: np.ndarray
    dhx: np.ndarray
    dcx: np.ndarray
    dw: np.ndarray


@inner
def _add_output_gradient(target, dh, dy, rows, columns):
    """target = dh + dy for a range of columns."""
    count = columns.stop - columns.start
    for row in range(rows.start, rows.stop):
        total, carried = row_part(target, row, columns), row_part(dh, row, columns)
        if dy.data.size > 0:
            own = row_part(dy, row, columns)
            for j in range(count):
                total[j] = carried[j] + own[j]
        else:
            for j in range(count):
                total[j] = carried[j]


def _second_gradient(cell, operands, packed, zeros, rows, grain, from_last, team):
    """The gradient of what R multiplied within the step, and the stages behind it."""


@overload(_second_gradient, jit_options=OPTIONS)
def _second_gradient_of(cell, operands, packed, zeros, rows, grain, from_last, team):
    def second_gradient(cell, operands, packed, zeros, rows, grain, from_last, team):
        dgates, units = operands.dgates, packed.units
        source = shifted(dgates, second_columns(cell, units)[0])
        target, count = shifted(dgates, multiplied_column(cell, units)), vectors_of(zeros, units)
        barrier(team)  # all of the gates' gradients are there
        for claim in range(num_claims(count, grain, team)):
            vectors = next_block(claim, count, grain, team)
            product(target, source, rows, packed, vectors, zeros, True, from_last)
            complete_gradient(cell, operands, units, rows, columns_of(zeros, vectors, units))

    def nothing(cell, operands, packed, zeros, rows, grain, from_last, team):
        pass

    return second_gradient if cell.instance_class.declaration.multiplied else nothing


def _hidden_gradient(cell, sizes, dh, dgates, packed, zeros, rows, vectors, from_last):
    """The gradient of h before the step by way of R, added to its direct part; without R that part or zero."""


@overload(_hidden_gradient, jit_options=OPTIONS)
def _hidden_gradient_of(cell, sizes, dh, dgates, packed, zeros, rows, vectors, from_last):
    def through_weights(cell, sizes, dh, dgates, packed, zeros, rows, vectors, from_last):
        recurrent = shifted(dgates, recurrent_columns(cell, sizes.hidden)[0])
        product(dh, recurrent, rows, packed, vectors, zeros, not carries_hidden(cell), from_last)

    def zero(cell, sizes, dh, dgates, packed, zeros, rows, vectors, from_last):
        columns = columns_of(zeros, vectors, sizes.output)
        for row in range(rows.start, rows.stop):
            total = row_part(dh, row, columns)
            for j in range(columns.stop - columns.start):
                total[j] = 0

    def direct(cell, sizes, dh, dgates, packed, zeros, rows, vectors, from_last):
        pass

    said = cell.instance_class.declaration
    return through_weights if said.recurrent_slots else direct if said.carries_hidden else zero


@inner
def _step_back(cell, layer, gradients, terms, w, zeros, rows, grain, from_last, team):
    """One time step of the rows: the gates' gradients, and the gradients of the states before the step."""
    sizes, states, dgates, dh, dy = layer.sizes, layer.states, gradients.gates, gradients.hidden, gradients.y
    output, units, outputs = gradients.output, vectors_of(zeros, sizes.hidden), vectors_of(zeros, sizes.output)
    own = Matrix(w, dgates.rows, terms.vectors.bias, 0)
    operands = GradientOperands(
        layer.gates, states.hidden_prev, states.cells_prev, states.cells, dgates, output, dh, gradients.cells, own
    )
    projection = terms.projection.packed
    total = shifted(dgates, dgates.stride - sizes.output)
    if projection.panels.size > 0:  # the gradient of its sum comes first, all of it
        columns = columns_of(zeros, partition(outputs, team.rank, team.size), sizes.output)
        _add_output_gradient(total, dh, dy, rows, columns)
        barrier(team)
    for claim in range(num_claims(units, grain, team)):
        vectors = next_block(claim, units, grain, team)
        columns = columns_of(zeros, vectors, sizes.hidden)
        if projection.panels.size > 0:
            product(output, total, rows, projection, vectors, zeros, True, from_last)
        else:
            _add_output_gradient(output, dh, dy, rows, columns)
        differentiate(cell, operands, sizes.hidden, rows, columns)
    _second_gradient(cell, operands, terms.second.packed, zeros, rows, grain, from_last, team)
    barrier(team)
    for claim in range(num_claims(outputs, grain, team)):
        vectors = next_block(claim, outputs, grain, team)
        _hidden_gradient(cell, sizes, dh, dgates, terms.recurrent.packed, zeros, rows, vectors, from_last)
    if grain > 0:
        barrier(team)


@inner
def _input_gradient(cell, sizes, term, zeros, dx, dgates, rows):
    """dx of the rows = the gates' gradients . W; without W ("skip" input) their sum."""
    if sizes.input > 0:
        vectors = Range(0, vectors_of(zeros, sizes.input))
        product(dx, shifted(dgates, term.first), rows, term.packed, vectors, zeros, True, False)
        return
    for row in range(rows.start, rows.stop):
        total = row_part(dx, row, Range(0, sizes.hidden))
        for j in range(sizes.hidden):
            total[j] = 0
        for column in input_columns(cell, sizes.hidden):
            gate = row_part(dgates, row, Range(column, column + sizes.hidden))
            for j in range(sizes.hidden):
                total[j] += gate[j]


@inner
def _steps_back(cell, layer, gradients, terms, w, steps, schedule, zeros, team):
    """The steps of a layer pass, last step first, and the gradient of their input."""
    starts, (_, team_of_steps) = layer.starts, team_of_rows(schedule.bounds, team)
    for index in range(steps.start, steps.stop):
        t = index if layer.reverse else steps.start + steps.stop - 1 - index
        rows = rows_of_step(starts, t, schedule.bounds, team)
        _step_back(cell, layer, gradients, terms, w, zeros, rows, schedule.grain, t % 2 == 1, team_of_steps)
    barrier(team)
    first, count = starts[steps.start], starts[steps.stop] - starts[steps.start]
    for claim in range(num_claims(count, ROWS, team)):
        block = next_block(claim, count, ROWS, team)
        rows = Range(first + block.start, first + block.stop)
        _input_gradient(cell, layer.sizes, terms.input, zeros, gradients.x, gradients.gates, rows)


@inner
def _sources(cell, layer):
    """What the products of the forward pass multiplied, in their order; of a product that is not there, anything."""
    gates, units = layer.gates, layer.sizes.hidden
    projected = shifted(gates, gates.stride - units)
    return layer.x, layer.states.hidden_prev, _multiplied(cell, gates, units), projected, layer.x


def _multiplied(cell, gates, units):
    """What R multiplied within the step."""


@overload(_multiplied, jit_options=OPTIONS)
def _multiplied_of(cell, gates, units):
    if cell.instance_class.declaration.multiplied:
        return lambda cell, gates, units: shifted(gates, multiplied_column(cell, units))
    return lambda cell, gates, units: gates


@inner
def _given(own, buffers):
    """The gradients of a layer pass, with those of the call."""
    y, x = of_call(own.y, buffers.dy), of_call(own.x, buffers.dx)
    states = of_call(own.hidden, buffers.dhx), of_call(own.cells, buffers.dcx)
    return Gradients(y, x, own.gates, own.output, *states)


@inner
def _chunk(gradients, first_step, batch_size):
    """The gradients, those of the gates counted from the first step of a chunk."""
    gates = shifted(gradients.gates, -first_step * batch_size * gradients.gates.stride)
    return Gradients(gradients.y, gradients.x, gates, gradients.output, gradients.hidden, gradients.cells)


@inner
def _run_pass_back(cell, layer, schedule, is_first, buffers, zeros, numbers, role, team, whole_team):
    """The steps of one layer pass, last step first, a chunk at a time."""
    forward, buffer, offsets = reading(layer.forward, buffers.x), layer.buffer, layer.offsets
    num_steps, given = forward.starts.size - 1, _given(layer.gradients, buffers)
    terms = terms_of(layer.products, _sources(cell, forward), buffers.w, buffer, offsets)
    scratch = part(buffer, offsets[SCRATCH], offsets[SCRATCH + 1])
    if is_first:
        pack_terms(terms, team)
        barrier(team)
    chunk, lag = schedule.chunk, schedule.chunk if role == ALONE else schedule.lag
    for done in range(0, num_steps, chunk):
        count = min(chunk, num_steps - done)
        start = done if forward.reverse else num_steps - done - count
        gradients = _chunk(given, start, schedule.batch_size)
        for earlier in range(0, count, lag):
            now = min(earlier + lag, count)
            if role == FOLLOWS:
                wait_for_progress(whole_team, done + now)
            own = Range(earlier, now) if forward.reverse else Range(count - now, count - earlier)
            steps = Range(start + own.start, start + own.stop)
            _steps_back(cell, forward, gradients, terms, buffers.w, steps, schedule, zeros, team)
            if role == LEADS:
                barrier(team)
                if team.rank == 0:
                    post_progress(whole_team, done + now)
        stop_row = forward.starts[start + count]
        for row in range(forward.starts[start], stop_row, depth_block_of(buffer)):
            rows = Range(row, min(row + depth_block_of(buffer), stop_row))
            pack_sources(terms, rows, team)
            barrier(team)
            add_weight_gradients(terms, buffers.dw, gradients.gates, rows, scratch, numbers, team)
            barrier(team)


@kernel
def backward(cell, passes, schedule, is_first, zeros, numbers, buffers, rank, size, sync):
    """The steps before of the layer passes: dw (added to), dx, and in place of the following states' gradients those of
    the states before.

    Calls go from the last steps to the first, whole chunks at a time; the first one packs the weights for all.
    """
    post_call(sync, rank, size)
    team = join(sync, rank, size, fitting(size, schedule))
    tasks, own_team = split_team(schedule.num_passes, schedule.split and schedule.grain == 0, team)
    for index in range(tasks.start, tasks.stop):
        role = role_of(index, tasks, schedule)
        _run_pass_back(cell, passes[index], schedule, is_first, buffers, zeros, numbers, role, own_team, team)
    barrier(team)


@kernel
def add_rows(target, addend, count, rank, size, sync):
    """target += addend, for `count` rows of two row lists."""
    post_call(sync, rank, size)
    team = join(sync, rank, size)
    rows, columns = partition(count, team.rank, team.size), Range(0, target.stride)
    for row in range(rows.start, rows.stop):
        total, own = row_part(target, row, columns), row_part(addend, row, columns)
        for j in range(target.stride):
            total[j] += own[j]
    barrier(team)
