"""The time loop backward: from the gradient of the output to those of the weights, the input and the initial states.

It runs a chunk of steps at a time. After the steps of a chunk, while its gates' gradients are still in the cache, it
runs the products with all of the chunk's rows, for the input and for the weights; those for the input follow after
fewer steps, the `lag`, if the layer below waits for them. The steps are split as in `loop`, the rows of the input's
gradient and the columns of the weights' evenly.
"""

from functools import lru_cache

from .loop import (
    ALONE,
    FOLLOWS,
    LEADS,
    ROWS,
    next_share,
    num_shares,
    role_of,
    rows_of_step,
    usable_threads,
    with_inputs,
)  # fmt: skip
from .machine.arrays import part
from .machine.bound import values_of
from .machine.formats import storage
from .machine.gemm import depth_block_of, product, product_of_rows
from .machine.jit import inner, kernel
from .machine.matrix import Matrix, Range, add, clear, or_call_data, row_part, shifted, with_field
from .machine.packing import columns_of, vectors_of
from .machine.partition import next_block, num_claims, partition, split_team, team_of_rows
from .machine.registers import not_inlined
from .machine.small import flushed
from .machine.sync import barrier, join, post_call, post_progress, wait_for_progress
from .operands import Gradients, Step
from .phases import all_of, columns_of_slots, matrix_of, noinline_if_many_phases, per_cell
from .products import OF_OUTPUT, OF_UNITS, vectors_of_head
from .stages import runner
from .weight_gradient import (
    add_vector_gradients,
    add_weight_gradients,
    block_of,
    clear_vector_gradients,
    pack_sources,
    pack_terms,
    packed_block,
    terms_of,
)


@inner
def _add_output_gradient(target, dh, dy, rows, columns):
    """target = dh + dy for a range of columns."""
    for row in range(rows.start, rows.stop):
        total, carried = row_part(target, row, columns), row_part(dh, row, columns)
        if dy.data.size > 0:
            own = row_part(dy, row, columns)
            for j in range(total.size):
                total[j] = flushed(carried[j] + own[j])
        else:
            for j in range(total.size):
                total[j] = flushed(carried[j])


@inner
def _apply_resets(carried, reset, reset_marks, rows, columns):
    """Where the next step starts from a reset state, move the carried gradient to the gradient of that state."""
    not_inlined()
    for row in range(rows.start, rows.stop if reset_marks.size > 0 else rows.start):
        if reset_marks[row] > 0:
            own = row_part(carried, row, columns)
            if reset.data.size > 0:
                add(row_part(reset, row, columns), own)
            clear(own)


def _phase_backward(declaration, number):
    """Build the backward function of a phase: the gradients through its products, then the gradient stages of the phase
    before."""
    width = OF_OUTPUT if number == 0 else OF_UNITS
    multiply = all_of(
        lambda declaration: [_product_backward(declaration, one) for one in declaration.phases[number].products]
    )
    run_stages = runner(lambda declaration: declaration.phases[number - 1].gradient if number > 0 else ())

    def run(cell, step, rows, team):
        noinline_if_many_phases(cell)
        barrier(team)  # wait until the gates' gradients are complete
        zeros, size, panel_grain = step.zeros, step.sizes[width], step.panel_grain
        for claim in range(num_shares(cell, zeros, size, panel_grain, team)):
            vectors = next_share(cell, claim, zeros, size, panel_grain, team)
            columns = columns_of(zeros, vectors, size)
            multiply(cell, (step, rows, vectors, columns))
            run_stages(cell, step.operands, step.gradients, step.sizes.hidden, rows, columns)

    return run


def _product_backward(declaration, of_r):
    """Build the function that computes the gradient of the source of a product of R, or adds to it."""
    place, adds, of_hidden = declaration.products.index(of_r), declaration.adds_to_source(of_r), of_r.source == "h_prev"
    target, first = inner(matrix_of(declaration, f"d{of_r.source}")), of_r.slots.start

    def multiply(cell, step, rows, vectors, columns):
        if of_hidden and not step.needs_dh_prev:
            return
        dgates, dsource = step.gradients.gates, target(cell, step.gradients, step.sizes.hidden)
        dproduct, term = shifted(dgates, first * step.sizes.hidden), step.weights[place]
        zeros, reverse_panels = step.zeros, step.reverse_panels
        product_of_rows(dsource, dproduct, rows, term.packed, term.weight, vectors, zeros, not adds, reverse_panels)

    def clear_source(cell, step, rows, vectors, columns):
        dsource = target(cell, step.gradients, step.sizes.hidden)
        for row in range(rows.start, rows.stop):
            clear(row_part(dsource, row, columns))

    def leave(cell, step, rows, vectors, columns):
        pass

    blocks, heads = len(of_r.slots) * of_r.heads, of_r.heads

    def multiply_by_heads(cell, step, rows, vectors, columns):
        if of_hidden and not step.needs_dh_prev:
            return
        term, zeros, hidden = step.weights[place], step.zeros, step.sizes.hidden
        size, dsource = hidden // heads, target(cell, step.gradients, hidden)
        for block in range(blocks):
            head, is_new = block % heads, block < heads and not adds
            dproduct = shifted(step.gradients.gates, first * hidden + block * size)
            packed, weight = packed_block(term, block), block_of(term, block)
            own = vectors_of_head(zeros, columns, head, size)
            of_head = shifted(dsource, head * size)
            product_of_rows(of_head, dproduct, rows, packed, weight, own, zeros, is_new, step.reverse_panels)

    if not of_r.slots:
        return leave if adds else clear_source
    return multiply if heads == 1 else multiply_by_heads


_run_phases_backward = all_of(
    lambda declaration: [_phase_backward(declaration, number) for number in reversed(range(len(declaration.phases)))]
)


@per_cell
def _add_vectors(declaration):
    """Call `add_vector_gradients` if the cell has vectors."""
    scalars = len(declaration.scalars)
    if not declaration.vectors:
        return lambda cell, term, dw, is_new, dvectors, hidden_size, team: None
    return lambda cell, term, dw, is_new, dvectors, hidden_size, team: add_vector_gradients(
        term, dw, is_new, dvectors, hidden_size, scalars, team
    )


@per_cell
def _clear_vectors(declaration):
    """Call `clear_vector_gradients` if the cell has vectors."""
    if not declaration.vectors:
        return lambda cell, dvectors, team: None
    return lambda cell, dvectors, team: clear_vector_gradients(dvectors, team)


_run_last_stages = runner(lambda declaration: declaration.phases[-1].gradient)


@inner
def _run_step_backward(cell, step, rows, team):
    """Run one time step backward: compute the gates' gradients, and those of the states before the step."""
    sizes, gradients, zeros, panel_grain = step.sizes, step.gradients, step.zeros, step.panel_grain
    projection = step.weights[len(step.weights) - 2].packed  # the vectors come last
    projected = storage(projection.panels).size > 0
    total = shifted(gradients.gates, gradients.gates.stride - sizes.output)
    if projected:  # the gradient of its output must be complete first
        columns = columns_of(zeros, next_share(cell, 0, zeros, sizes.output, 0, team), sizes.output)
        _apply_resets(gradients.hidden, gradients.reset_hidden, gradients.reset_marks, rows, columns)
        _add_output_gradient(total, gradients.hidden, gradients.y, rows, columns)
        barrier(team)
    for claim in range(num_shares(cell, zeros, sizes.hidden, panel_grain, team)):
        vectors = next_share(cell, claim, zeros, sizes.hidden, panel_grain, team)
        columns = columns_of(zeros, vectors, sizes.hidden)
        if projected:
            product(gradients.units, total, rows, projection, vectors, zeros, True, step.reverse_panels)
        else:
            _apply_resets(gradients.hidden, gradients.reset_hidden, gradients.reset_marks, rows, columns)
            _add_output_gradient(gradients.units, gradients.hidden, gradients.y, rows, columns)
        for state in range(gradients.states.stride // sizes.hidden):
            first = state * sizes.hidden
            of_state = Range(first + columns.start, first + columns.stop)
            _apply_resets(gradients.states, gradients.reset_states, gradients.reset_marks, rows, of_state)
        _run_last_stages(cell, step.operands, gradients, sizes.hidden, rows, columns)
    _run_phases_backward(cell, (step, rows, team))
    if panel_grain > 0:
        barrier(team)


@per_cell
def _input_gradient(declaration):
    """Build the function dx of the rows = the gates' gradients . W; with "skip" input their sum. Without W there is no
    dx."""
    if not declaration.input_gates:
        return lambda cell, sizes, term, zeros, dx, dgates, rows: None
    columns_of_input = columns_of_slots(declaration.products[0].slots)

    def gradient(cell, sizes, term, zeros, dx, dgates, rows):
        if sizes.input > 0:
            vectors = Range(0, vectors_of(zeros, sizes.input))
            own = shifted(dgates, term.first)
            product_of_rows(dx, own, rows, term.packed, term.weight, vectors, zeros, True, False)
            return
        for row in range(rows.start, rows.stop):
            total = row_part(dx, row, Range(0, sizes.hidden))
            clear(total)
            for column in columns_of_input(sizes.hidden):
                add(total, row_part(dgates, row, Range(column, column + sizes.hidden)))

    return gradient


@inner
def _run_steps_backward(cell, layer, step, steps, skip_step, schedule, team):
    """Run some steps of a layer pass, last step first, and compute the gradient of their input.

    The gradient of h before step `skip_step` is not computed; -1: no such step.
    """
    not_inlined()
    starts, (_, team_of_steps) = layer.starts, team_of_rows(schedule.bounds, team)
    for index in range(steps.start, steps.stop):
        t = index if layer.reverse else steps.start + steps.stop - 1 - index
        rows = rows_of_step(starts, t, schedule.bounds, team)
        own = with_field(with_field(step, "reverse_panels", t % 2 == 1), "needs_dh_prev", t != skip_step)
        _run_step_backward(cell, own, rows, team_of_steps)
    barrier(team)
    if step.gradients.x.data.size == 0:  # dx is not wanted
        return
    first, count = starts[steps.start], starts[steps.stop] - starts[steps.start]
    for claim in range(num_claims(count, ROWS, team)):
        block = next_block(claim, count, ROWS, team)
        rows = Range(first + block.start, first + block.stop)
        _input_gradient(cell, step.sizes, step.weights[0], step.zeros, step.gradients.x, step.gradients.gates, rows)


@inner
def _gradients_of_call(gradients, arrays):
    """Return the gradients of a layer pass, with the arrays of the call."""
    return Gradients(
        y=or_call_data(gradients.y, arrays.dy), x=or_call_data(gradients.x, arrays.dx), gates=gradients.gates,
        units=gradients.units, hidden=or_call_data(gradients.hidden, arrays.dhx),
        states=or_call_data(gradients.states, arrays.dcx), reset_marks=gradients.reset_marks,
        reset_hidden=or_call_data(gradients.reset_hidden, arrays.dhx_reset),
        reset_states=or_call_data(gradients.reset_states, arrays.dcx_reset), inputs=gradients.inputs,
        vectors=gradients.vectors,
    )  # fmt: skip


@lru_cache
def _multiplied(declaration, source):
    """Build the function that returns the rows that a product of R multiplies."""
    return matrix_of(declaration, source)


_sources_of_r = all_of(lambda declaration: [_multiplied(declaration, one.source) for one in declaration.products[1:]])


@inner
def _sources(cell, operands, hidden_size, x):
    """Return what the products of a layer multiplied, in their order: x, the sources of the phases, the input of the
    projection, and x again for the vectors, which do not read it."""
    units = shifted(operands.gates, operands.gates.stride - hidden_size)
    return (x,) + _sources_of_r(cell, (operands, hidden_size)) + (units, x)


@inner
def _run_pass_backward(cell, layer, schedule, is_first, is_last, arrays, zeros, numbers, role, team, whole_team):
    """Run the steps of one layer pass, last step first, a chunk at a time."""
    forward, buffer, offsets = layer.forward, layer.buffer, layer.offsets
    scratch = part(storage(buffer), offsets[offsets.size - 2], offsets[offsets.size - 1])
    starts, num_steps, bound = forward.starts, forward.starts.size - 1, _gradients_of_call(layer.gradients, arrays)
    multiplied = _sources(cell, forward.operands, forward.constants.sizes.hidden, or_call_data(forward.x, arrays.x))
    terms = terms_of(forward.constants.products, multiplied, arrays.w, buffer, offsets, whole_team.thread_id)
    vectors = Matrix(arrays.w, bound.gates.rows, terms[len(terms) - 1].bias, 0)
    operands = with_inputs(cell, with_field(forward.operands, "vectors", vectors), arrays.x)
    if is_first:
        pack_terms(terms, team)
        _clear_vectors(cell, bound.vectors, team)
        barrier(team)
    chunk, lag = schedule.chunk, schedule.chunk if role == ALONE else schedule.lag
    skip_step = -1
    if is_last and not arrays.wants_dhx:
        skip_step = num_steps - 1 if forward.reverse else 0
    for done in range(0, num_steps, chunk):
        count = min(chunk, num_steps - done)
        start = done if forward.reverse else num_steps - done - count
        dgates = shifted(bound.gates, -starts[start] * bound.gates.stride)
        gradients = with_field(bound, "gates", dgates)
        step = Step(forward.constants.sizes, terms, operands, gradients, zeros, schedule.panel_grain, False, True)
        for earlier in range(0, count if arrays.runs_steps else 0, lag):
            now = min(earlier + lag, count)
            if role == FOLLOWS:
                wait_for_progress(whole_team, done + now)
            own = Range(earlier, now) if forward.reverse else Range(count - now, count - earlier)
            own = Range(start + own.start, start + own.stop)
            _run_steps_backward(cell, forward, step, own, skip_step, schedule, team)
            if role == LEADS:
                barrier(team)
                if team.thread_id == 0:
                    post_progress(whole_team, done + now)
        if arrays.dw.size == 0:
            continue
        stop_row, is_new = starts[start + count], arrays.dw_is_new and is_first and done == 0
        _add_vectors(cell, terms[-1], arrays.dw, is_new, bound.vectors, forward.constants.sizes.hidden, team)
        for row in range(starts[start], stop_row, depth_block_of(scratch)):
            rows = Range(row, min(row + depth_block_of(scratch), stop_row))
            pack_sources(terms, rows, scratch, numbers.size, team)
            barrier(team)
            begins = is_new and row == starts[start]
            add_weight_gradients(terms[:-1], arrays.dw, begins, dgates, rows, scratch, zeros, numbers, team)
            barrier(team)


@kernel
def backward(bound, arrays, thread_id, size, sync):
    """Run the preceding steps of the layer passes backward: add to dw, write dx, and update the gradients of the states
    in place.

    Calls go from the last steps to the first, in whole chunks. The first call packs the weights for all; the last one
    works on the first step.
    """
    post_call(sync, thread_id, size)
    cell, passes, schedule, is_first, is_last, zeros, numbers = values_of(bound)
    team = join(sync, thread_id, size, usable_threads(size, schedule))
    tasks, own_team = split_team(schedule.num_passes, schedule.split and schedule.panel_grain == 0, team)
    for index in range(tasks.start, tasks.stop):
        role = role_of(index, tasks, schedule)
        layer = passes[index]
        _run_pass_backward(cell, layer, schedule, is_first, is_last, arrays, zeros, numbers, role, own_team, team)
    barrier(team)


@kernel
def add_rows(bound, arrays, thread_id, size, sync):
    """target += addend, for the rows of some steps. Without data of its own the target is the call's dx, if wanted."""
    post_call(sync, thread_id, size)
    target, addend, starts = values_of(bound)
    target, team = or_call_data(target, arrays.dx), join(sync, thread_id, size)
    count = 0 if target.data.size == 0 else starts[starts.size - 1] - starts[0]
    rows, columns = partition(count, team.thread_id, team.size), Range(0, target.stride)
    for row in range(rows.start, rows.stop):
        add(row_part(target, row, columns), row_part(addend, row, columns))
    barrier(team)
