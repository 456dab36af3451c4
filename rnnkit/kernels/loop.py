"""The time loop of a layer, written once for every cell; its gradient is in `loop_gradient`.

The rows of a batch are listed step by step: at each step only those whose sequence is that long, the longest first, so
padding is never read. The work is shared out in one of two ways. By units: a rank computes the products and the gates
of its panels, and the team meets once a step, where the new hidden state (backward: the gates' gradients) is complete;
where that is much work, ranks take `grain` panels at a time, of their own or a neighbour's. By rows (`bounds`): a rank
runs its own rows of the batch, which nobody else needs, without a barrier; or a few ranks do, who share out the units.

A call runs one layer pass or two: a direction of a layer each. Two may each have half of the team, where its size is
even: the directions of one layer are independent; two layers of one direction are pipelined, the upper `lag` steps
behind the lower.
"""

from typing import NamedTuple

import numpy as np
from numba.extending import overload

from .machine.formats import storage
from .machine.gemm import columns_of, product, vectors_of
from .machine.jit import OPTIONS, inner, kernel
from .machine.matrix import Matrix, Range, of_call, part, row_part, shifted
from .machine.partition import next_block, num_claims, shares_rows, split_team, team_of_rows
from .machine.sync import barrier, join, post_call, post_progress, wait_for_progress
from .products import Sizes, weights_of
from .stages import Operands, activate, apart_columns, complete, input_columns, multiplied_column, vectors_column

# Rows that a rank takes at a time where a block is shared by rows. All weights are read for them, which with 96 takes a
# few percent of the time, with 192 nothing (Zen 3, H = 512 and 800)
ROWS = 192
ALONE, LEADS, FOLLOWS = range(3)
"""What a layer pass is to the other one of the call."""


class Schedule(NamedTuple):
    """How a call is worked on: decided before it by the planner, from the sizes alone."""

    bounds: np.ndarray  # where to cut the rows of every step, for as many teams as have rows of their own; else empty
    grain: int  # panels that a rank takes at a time, 0 for its share
    num_passes: int  # layer passes of the call
    split: bool  # whether each of two has a buffer of its own, and half of the team, if its size is even
    pipelined: bool  # whether the second reads what the first writes (backward: the gradient that it writes)
    lag: int  # steps after which the first lets the second go on, where they run at once
    chunk: int  # steps whose input products (backward: gates' gradients) are there at a time
    buffered_steps: int  # of the gates: all of the call, or one chunk, and each overwrites the last
    batch_size: int
    threads: int  # most ranks that it pays to have


class States(NamedTuple):
    """Hidden states before and after a step, and the states beside them side by side."""

    hidden_prev: Matrix
    hidden: Matrix
    cells_prev: Matrix
    cells: Matrix


class LayerPass(NamedTuple):
    """One direction of one layer, forward.

    Step t of a call has the positions starts[t]:starts[t + 1] of the row lists.
    """

    reverse: bool
    sizes: Sizes
    starts: np.ndarray
    x: Matrix  # without data it is that of the call
    offsets: np.ndarray  # of its weights in the packed buffer
    gates: Matrix  # rows t*batch_size + n, counted from the first buffered step
    states: States


@inner
def project_inputs(cell, sizes, weights, x, gates, rows, vectors):
    """Gates of the rows = bias + x . W; without W ("skip" input) every gate receives x itself."""
    if sizes.input > 0:
        product(gates, x, rows, weights.input, vectors, weights.bias, True, False)
        return
    units = columns_of(weights.bias, vectors, sizes.hidden)
    for row in range(rows.start, rows.stop):
        values = row_part(x, row, units)
        for column in input_columns(cell, sizes.hidden):
            columns = Range(column + units.start, column + units.stop)
            gate, bias = row_part(gates, row, columns), part(weights.bias, columns.start, columns.stop)
            for j in range(units.stop - units.start):
                gate[j] = bias[j] + values[j]


@inner
def step(cell, sizes, weights, gates, states, rows, grain, from_last, team):
    """One time step of the rows, whose gates hold their input products; it reads the weights `from_last`."""
    target, vectors_of_units = states.hidden, vectors_of(weights.bias, sizes.hidden)
    projected = storage(weights.projection.panels).size > 0
    if projected:  # the last column of the gates takes what the projection multiplies
        target = shifted(gates, gates.stride - sizes.hidden)
    own = Matrix(weights.bias, gates.rows, vectors_column(cell, sizes.hidden), 0)
    operands = Operands(gates, states.hidden_prev, target, states.cells_prev, states.cells, own)
    for claim in range(num_claims(vectors_of_units, grain, team)):
        vectors = next_block(claim, vectors_of_units, grain, team)
        units = columns_of(weights.bias, vectors, sizes.hidden)
        for column in apart_columns(cell, sizes.hidden):  # the product is all that they hold, and is added to them
            _fill(gates, weights.bias, rows, Range(column + units.start, column + units.stop))
        _recurrent_product(cell, gates, states.hidden_prev, rows, weights, vectors, from_last)
        activate(cell, operands, sizes.hidden, rows, units)
    _second_product(cell, operands, weights.second, weights.bias, rows, grain, from_last, team)
    if projected:
        barrier(team)
        count = vectors_of(weights.bias, sizes.output)
        for claim in range(num_claims(count, grain, team)):
            vectors = next_block(claim, count, grain, team)
            product(states.hidden, target, rows, weights.projection, vectors, weights.zeros, True, from_last)


@inner
def _fill(gates, bias, rows, columns):
    """The columns of the bias, in each row."""
    values = part(bias, columns.start, columns.stop)
    for row in range(rows.start, rows.stop):
        gate = row_part(gates, row, columns)
        for j in range(columns.stop - columns.start):
            gate[j] = values[j]


def _recurrent_product(cell, gates, hidden, rows, weights, vectors, from_last):
    """R h, added to the gates or kept apart."""


@overload(_recurrent_product, jit_options=OPTIONS)
def _recurrent_product_of(cell, gates, hidden, rows, weights, vectors, from_last):
    def recurrent_product(cell, gates, hidden, rows, weights, vectors, from_last):
        product(gates, hidden, rows, weights.recurrent, vectors, weights.bias, False, from_last)

    def nothing(cell, gates, hidden, rows, weights, vectors, from_last):
        pass

    return recurrent_product if cell.instance_class.declaration.recurrent_slots else nothing


def _second_product(cell, operands, weights, bias, rows, grain, from_last, team):
    """R times what a stage wrote, and the stages behind it."""


@overload(_second_product, jit_options=OPTIONS)
def _second_product_of(cell, operands, weights, bias, rows, grain, from_last, team):
    def second_product(cell, operands, weights, bias, rows, grain, from_last, team):
        gates, count = operands.gates, vectors_of(bias, weights.units)
        multiplied = shifted(gates, multiplied_column(cell, weights.units))
        barrier(team)  # all of what R multiplies is there
        for claim in range(num_claims(count, grain, team)):
            vectors = next_block(claim, count, grain, team)
            product(gates, multiplied, rows, weights, vectors, bias, False, from_last)
            complete(cell, operands, weights.units, rows, columns_of(bias, vectors, weights.units))

    def nothing(cell, operands, weights, bias, rows, grain, from_last, team):
        pass

    return second_product if cell.instance_class.declaration.multiplied else nothing


@inner
def rows_of_step(starts, t, bounds, team):
    """The positions at step t that the rank's team works on."""
    if not shares_rows(bounds, team):
        return Range(starts[t], starts[t + 1])
    number, _ = team_of_rows(bounds, team)
    active = starts[t + 1] - starts[t]
    return Range(starts[t] + min(bounds[number], active), starts[t] + min(bounds[number + 1], active))


@inner
def _project_chunk(cell, layer, weights, gates, steps, schedule, team):
    """The input products of a chunk of steps, by units; by rows of all of it where ranks have rows of their own."""
    starts, units = layer.starts, vectors_of(weights.bias, layer.sizes.hidden)
    rows = Range(starts[steps.start], starts[steps.stop])
    by_rows = schedule.bounds.size == team.size + 1
    count, grain = rows.stop - rows.start if by_rows else units, ROWS if by_rows else schedule.grain
    for claim in range(num_claims(count, grain, team)):
        block = next_block(claim, count, grain, team)
        if by_rows:
            block = Range(rows.start + block.start, rows.start + block.stop)
            project_inputs(cell, layer.sizes, weights, layer.x, gates, block, Range(0, units))
        else:
            project_inputs(cell, layer.sizes, weights, layer.x, gates, rows, block)
    if grain > 0 or shares_rows(schedule.bounds, team):
        barrier(team)


@inner
def _run_pass(cell, layer, schedule, packed, zeros, role, team, whole_team):
    """The steps of one layer pass, a chunk of input products at a time."""
    weights = weights_of(cell, layer.sizes, packed, layer.offsets, zeros, whole_team.rank)
    num_steps = layer.starts.size - 1
    _, team_of_steps = team_of_rows(schedule.bounds, team)
    chunk = schedule.chunk if role == ALONE else min(schedule.lag, schedule.chunk)
    for done in range(0, num_steps, chunk):
        to_do = min(done + chunk, num_steps)
        steps = Range(num_steps - to_do, num_steps - done) if layer.reverse else Range(done, to_do)
        skipped = steps.start if schedule.buffered_steps < num_steps else 0
        gates = shifted(layer.gates, -skipped * schedule.batch_size * layer.gates.stride)
        if role == FOLLOWS:
            wait_for_progress(whole_team, to_do)
        _project_chunk(cell, layer, weights, gates, steps, schedule, team)
        for index in range(steps.start, steps.stop):
            t = steps.start + steps.stop - 1 - index if layer.reverse else index
            rows = rows_of_step(layer.starts, t, schedule.bounds, team)
            step(cell, layer.sizes, weights, gates, layer.states, rows, schedule.grain, t % 2 == 1, team_of_steps)
            barrier(team_of_steps)
        if shares_rows(schedule.bounds, team):
            barrier(team)
        if role == LEADS and team.rank == 0:
            post_progress(whole_team, to_do)


@inner
def reading(layer, x):
    """A layer pass, which reads x where it has no input of its own."""
    own = of_call(layer.x, x)
    return LayerPass(layer.reverse, layer.sizes, layer.starts, own, layer.offsets, layer.gates, layer.states)


@inner
def role_of(index, tasks, schedule):
    """What a layer pass is to the other one, if this rank runs only some of them."""
    if not schedule.pipelined or tasks.stop - tasks.start == schedule.num_passes:
        return ALONE
    return LEADS if index == 0 else FOLLOWS


@inner
def fitting(size, schedule):
    """Ranks that the schedule has work for, of so many: a multiple of its teams, where there are as many."""
    most, teams = min(size, schedule.threads), max(schedule.bounds.size - 1, 1)
    if schedule.split and schedule.threads % schedule.num_passes == 0:
        teams *= schedule.num_passes
    return most - most % teams if most >= teams else most


@kernel
def forward(cell, passes, schedule, packed, zeros, x, rank, size, sync):
    """The next steps of the layer passes on x, flat."""
    post_call(sync, rank, size)
    team = join(sync, rank, size, fitting(size, schedule))
    tasks, own_team = split_team(schedule.num_passes, schedule.split and schedule.grain == 0, team)
    for index in range(tasks.start, tasks.stop):
        layer, role = reading(passes[index], x), role_of(index, tasks, schedule)
        _run_pass(cell, layer, schedule, packed, zeros, role, own_team, team)
    barrier(team)
