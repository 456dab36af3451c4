"""The time loop of a layer, written once for every cell; its gradient is in `loop_gradient`.

Rows are packed: each step lists only the sequences that are long enough, the longest first, so padding is never read.
The work is split in one of two ways. By units: a thread computes the products and the gates of its panels, and the team
synchronizes between phases, before a projection, and at the end of a step, when the new hidden state (backward: the
gates' gradients) is complete; large steps use work stealing, in blocks of `panel_grain` panels. By rows (`bounds`): a
thread runs its own rows of the batch without a barrier, as no other thread needs them; or a few threads run them
together and split the units.

A call runs one or two layer passes, each one direction of one layer. Two passes may have half of the team each, if its
size is even: the directions of one layer are independent; two layers of one direction are pipelined, the upper `lag`
steps behind the lower.
"""

from .machine.arrays import part
from .machine.bound import values_of
from .machine.formats import storage
from .machine.gemm import product, product_with
from .machine.jit import inner, kernel
from .machine.matrix import Matrix, Range, clear, copy, or_call_data, row_part, shifted, with_field
from .machine.packing import columns_of, vectors_of
from .machine.partition import next_block, num_claims, partition, shares_rows, split_team, team_of_rows
from .machine.registers import not_inlined
from .machine.sync import barrier, join, post_call, post_progress, wait_for_progress
from .means import vectors_of_mean_block
from .operands import Step
from .phases import all_of, columns_of_slots, matrix_of, noinline_if_many_phases, per_cell
from .products import sum_biases, vectors_of_head, weights_of, weights_of_block
from .stages import runner

# Rows per block when a chunk is split by rows. Each block reads all weights, which with 96 rows takes a few percent of
# the time, with 192 nothing (Zen 3, H = 512 and 800)
ROWS = 192
ALONE, LEADS, FOLLOWS = range(3)
"""Role of a layer pass towards the other one of the call: none, producer, consumer."""


@per_cell
def project_inputs(declaration):
    """Build the function gates of the rows = bias + x . W; with "skip" input every gate receives x itself. Without W
    nothing is read."""
    if not declaration.input_gates:
        return lambda cell, sizes, weights, x, gates, rows, vectors: None
    columns_of_input = columns_of_slots(declaration.products[0].slots)

    def project(cell, sizes, weights, x, gates, rows, vectors):
        if sizes.input > 0:
            product_with(gates, x, rows, weights.products[0], vectors, weights.bias, True, False)
            return
        units = columns_of(weights.bias, vectors, sizes.hidden)
        for row in range(rows.start, rows.stop):
            values = row_part(x, row, units)
            for column in columns_of_input(sizes.hidden):
                columns = Range(column + units.start, column + units.stop)
                gate, bias = row_part(gates, row, columns), part(weights.bias, columns.start, columns.stop)
                for j in range(units.stop - units.start):
                    gate[j] = bias[j] + values[j]

    return project


@per_cell
def vectors_at_once(declaration):
    """Build the function (cell, array) -> number of vectors that one thread takes together: a block of a mean, or 1."""
    return (lambda cell, array: vectors_of_mean_block(array)) if declaration.means else (lambda cell, array: 1)


@inner
def num_shares(cell, array, units, panel_grain, team):
    """Return how often each thread calls `next_share` for so many units."""
    size = vectors_at_once(cell, array)
    count = (vectors_of(array, units) + size - 1) // size
    return num_claims(count, (panel_grain + size - 1) // size, team)


@inner
def next_share(cell, claim, array, units, panel_grain, team):
    """Return the vectors of a thread's claim: its `next_block` of these units, in whole blocks of a mean."""
    size, count = vectors_at_once(cell, array), vectors_of(array, units)
    own = next_block(claim, (count + size - 1) // size, (panel_grain + size - 1) // size, team)
    return Range(min(own.start * size, count), min(own.stop * size, count))


def _phase(declaration, number):
    """Build the forward function of a phase: its products, added to the gates or stored apart, and its stages."""
    multiply = all_of(
        lambda declaration: [_product(declaration, one) for one in declaration.phases[number].products if one.slots]
    )
    run_stages = runner(lambda declaration: declaration.phases[number].forward)

    def run(cell, step, rows, team):
        noinline_if_many_phases(cell)
        units, panel_grain = step.sizes.hidden, step.panel_grain
        if number > 0:
            barrier(team)  # wait until what R multiplies is complete
        for claim in range(num_shares(cell, step.zeros, units, panel_grain, team)):
            vectors = next_share(cell, claim, step.zeros, units, panel_grain, team)
            columns = columns_of(step.zeros, vectors, units)
            multiply(cell, (step, rows, vectors, columns))
            run_stages(cell, step.operands, None, units, rows, columns)

    return run


def _product(declaration, of_r):
    """Build the function that adds a product of a phase to the gates; `apart` columns start as the bias."""
    place = [one for one in declaration.products if (one.heads > 1) == (of_r.heads > 1)].index(of_r)
    source, apart_columns = inner(matrix_of(declaration, of_r.source)), columns_of_slots(of_r.apart)

    def begin(cell, step, rows, units):
        gates, weights = step.operands.gates, step.weights
        for column in apart_columns(step.sizes.hidden):
            columns = Range(column + units.start, column + units.stop)
            bias = part(weights.bias, columns.start, columns.stop)
            for row in range(rows.start, rows.stop):
                copy(row_part(gates, row, columns), bias)

    begin, first, blocks, heads = inner(begin), of_r.slots.start, len(of_r.slots) * of_r.heads, of_r.heads

    def multiply(cell, step, rows, vectors, units):
        begin(cell, step, rows, units)
        weights, values = step.weights, source(cell, step.operands, step.sizes.hidden)
        own = weights.products[place]
        product_with(step.operands.gates, values, rows, own, vectors, weights.bias, False, step.reverse_panels)

    def multiply_by_heads(cell, step, rows, vectors, units):
        begin(cell, step, rows, units)
        gates, weights, hidden = step.operands.gates, step.weights, step.sizes.hidden
        size, values = hidden // heads, source(cell, step.operands, hidden)
        for block in range(blocks):
            head = block % heads
            own = weights_of_block(weights.heads[place], block, first * hidden + block * size)
            panels = vectors_of_head(step.zeros, units, head, size)
            of_head = shifted(values, head * size)
            product_with(gates, of_head, rows, own, panels, weights.bias, False, step.reverse_panels)

    return multiply if heads == 1 else multiply_by_heads


_run_phases = all_of(lambda declaration: [_phase(declaration, n) for n in range(len(declaration.phases))])


@inner
def run_step(cell, step, rows, team):
    """Run one time step of the rows, whose gates hold their input products."""
    _run_phases(cell, (step, rows, team))
    projection, operands, panel_grain = step.weights.projection, step.operands, step.panel_grain
    if storage(projection.panels).size > 0:
        barrier(team)
        count = vectors_of(step.zeros, step.sizes.output)
        for claim in range(num_claims(count, panel_grain, team)):
            vectors = next_block(claim, count, panel_grain, team)
            product(operands.hidden, operands.units, rows, projection, vectors, step.zeros, True, step.reverse_panels)


@inner
def with_gates(cell, sizes, weights, operands, gates):
    """Return the operands with these gates; the last columns of their rows are the input of a projection."""
    projected = storage(weights.projection.panels).size > 0
    units = shifted(gates, gates.stride - sizes.hidden) if projected else operands.hidden
    vectors = Matrix(weights.bias, gates.rows, num_slots(cell) * sizes.hidden, 0)
    operands = with_field(with_field(operands, "gates", gates), "units", units)
    return with_field(operands, "vectors", vectors)


@per_cell
def with_inputs(declaration):
    """Build the function (cell, operands, flat x) -> operands with the call's side inputs."""
    if declaration.inputs:
        return lambda cell, operands, x: with_field(operands, "inputs", or_call_data(operands.inputs, x))
    return lambda cell, operands, x: operands


@per_cell
def num_slots(declaration):
    """Build the function (cell) -> slots of a row of the gate buffer, without the input of a projection."""
    count = len(declaration.slots)
    return lambda cell: count


@inner
def rows_of_step(starts, t, bounds, team):
    """Return the positions at step t that the thread's team works on."""
    if not shares_rows(bounds, team):
        return Range(starts[t], starts[t + 1])
    number, _ = team_of_rows(bounds, team)
    active = starts[t + 1] - starts[t]
    return Range(starts[t] + min(bounds[number], active), starts[t] + min(bounds[number + 1], active))


@inner
def _project_chunk(cell, layer, weights, x, gates, steps, schedule, team):
    """Compute the input products of a chunk of steps, split by units; by rows if threads have rows of their own."""
    starts, units, panel_grain, zeros = layer.starts, layer.constants.sizes.hidden, schedule.panel_grain, weights.bias
    rows = Range(starts[steps.start], starts[steps.stop])
    by_rows, count = schedule.bounds.size == team.size + 1, rows.stop - rows.start
    claims = num_claims(count, ROWS, team) if by_rows else num_shares(cell, zeros, units, panel_grain, team)
    for claim in range(claims):
        own, vectors = rows, Range(0, vectors_of(zeros, units))
        if by_rows:
            block = next_block(claim, count, ROWS, team)
            own = Range(rows.start + block.start, rows.start + block.stop)
        else:
            vectors = next_share(cell, claim, zeros, units, panel_grain, team)
        project_inputs(cell, layer.constants.sizes, weights, x, gates, own, vectors)
    if panel_grain > 0 or shares_rows(schedule.bounds, team):
        barrier(team)


@inner
def _run_pass(cell, layer, schedule, packed, zeros, arrays, role, team, whole_team):
    """Run the steps of one layer pass, a chunk of input products at a time."""
    constants, sizes = layer.constants, layer.constants.sizes
    weights = weights_of(
        cell, sizes, packed, constants.offsets, constants.products, constants.weight_starts, arrays.w,
        whole_team.thread_id,
    )  # fmt: skip
    num_steps, x = layer.starts.size - 1, or_call_data(layer.x, arrays.x)
    _, team_of_steps = team_of_rows(schedule.bounds, team)
    chunk = schedule.chunk if role == ALONE else min(schedule.lag, schedule.chunk)
    for done in range(0, num_steps, chunk):
        to_do = min(done + chunk, num_steps)
        steps = Range(num_steps - to_do, num_steps - done) if layer.reverse else Range(done, to_do)
        skipped = 0 if schedule.keeps_gates else layer.starts[steps.start]
        gates = shifted(layer.operands.gates, -skipped * layer.operands.gates.stride)
        operands = with_gates(cell, sizes, weights, layer.operands, gates)
        operands = with_inputs(cell, operands, arrays.x)
        if role == FOLLOWS:
            wait_for_progress(whole_team, to_do)
        _project_chunk(cell, layer, weights, x, gates, steps, schedule, team)
        for index in range(steps.start, steps.stop):
            t = steps.start + steps.stop - 1 - index if layer.reverse else index
            step = Step(sizes, weights, operands, None, zeros, schedule.panel_grain, t % 2 == 1, True)
            run_step(cell, step, rows_of_step(layer.starts, t, schedule.bounds, team), team_of_steps)
            barrier(team_of_steps)
        if shares_rows(schedule.bounds, team):
            barrier(team)
        if role == LEADS and team.thread_id == 0:
            post_progress(whole_team, to_do)


@inner
def role_of(index, tasks, schedule):
    """Return the role of a layer pass, which is not ALONE if this thread runs only one of two pipelined ones."""
    if not schedule.pipelined or tasks.stop - tasks.start == schedule.num_passes:
        return ALONE
    return LEADS if index == 0 else FOLLOWS


@inner
def usable_threads(size, schedule):
    """Return how many of `size` threads the schedule has work for: a multiple of its teams, if there are that many."""
    most, teams = min(size, schedule.threads), max(schedule.bounds.size - 1, 1)
    if schedule.split and schedule.threads % schedule.num_passes == 0:
        teams *= schedule.num_passes
    return most - most % teams if most >= teams else most


@inner
def _copy_states(states, width, all_states, index, begins, team):
    """Copy a pseudo-layer's initial states (N rows) from `all_states` (flat; empty: zeros), or its final ones to it."""
    not_inlined()
    count = states.rows.size
    own = partition(count, team.thread_id, team.size)
    for row in range(own.start, own.stop):
        values, start = row_part(states, row, Range(0, width)), (index * count + row) * width
        if all_states.size == 0:
            clear(values)
            continue
        others = part(all_states, start, start + width)
        if begins:
            copy(values, others)
        else:
            copy(others, values)


@kernel
def forward(bound, arrays, thread_id, size, sync):
    """Run the next steps of the layer passes, from the states of this call or those that the previous call left."""
    post_call(sync, thread_id, size)
    cell, passes, ends, schedule, position, packed, zeros = values_of(bound)
    team = join(sync, thread_id, size, usable_threads(size, schedule))
    for index in range(schedule.num_passes if position.is_first else 0):
        layer, own = passes[index], ends[index]
        if position.sums_biases:
            constants = layer.constants
            sum_biases(constants.products, constants.weight_starts, packed, constants.offsets, arrays.w, team)
        _copy_states(own.hidden_initial, layer.constants.sizes.output, arrays.hx, own.index, True, team)
        if arrays.cy.size > 0:
            _copy_states(own.states_initial, own.states_initial.stride, arrays.cx, own.index, True, team)
    if position.is_first:
        barrier(team)
    tasks, own_team = split_team(schedule.num_passes, schedule.split and schedule.panel_grain == 0, team)
    for index in range(tasks.start, tasks.stop):
        role = role_of(index, tasks, schedule)
        _run_pass(cell, passes[index], schedule, packed, zeros, arrays, role, own_team, team)
    barrier(team)
    for index in range(schedule.num_passes if position.is_last else 0):
        own = ends[index]
        _copy_states(own.hidden_final, passes[index].constants.sizes.output, arrays.hy, own.index, False, team)
        if arrays.cy.size > 0:
            _copy_states(own.states_final, own.states_final.stride, arrays.cy, own.index, False, team)
    if position.is_last:
        barrier(team)
