"""The time loop backward: from the gradient of the output to those of the gates and of the initial states.

The work is shared out as in `loop`.
"""

from typing import NamedTuple

from .barrier import enroll, meet
from .cell import carries_state, complete_gradient, differentiate, input_slots, recurrent_columns
from .gemm import columns_of, product, share, vectors_of
from .jit import kernel
from .loop import rows_of_step, shares_rows
from .matrix import Matrix, offset


class Gradients(NamedTuple):
    """What flows back: dy (empty without one), gradients of the gates and of the projection's sum, and per batch row
    the gradients of the step's output units, of the hidden state and of the cell."""

    dy: Matrix
    gates: Matrix
    projection: Matrix
    output: Matrix
    hidden: Matrix
    cells: Matrix


@kernel
def _add_output_gradient(target, carry, dy, first_row, last_row, first, last):
    """target = carry + dy for a range of columns."""
    for row in range(first_row, last_row):
        to, source = offset(target, row), offset(carry, row)
        if dy.data.size > 0:
            at = offset(dy, row)
            for j in range(first, last):
                target.data[to + j] = carry.data[source + j] + dy.data[at + j]
        else:
            for j in range(first, last):
                target.data[to + j] = carry.data[source + j]


@kernel
def _project_gradient(
    sizes, panels, zeros, gradients, first_row, last_row, first_vector, last_vector, crew_member, crew, sync
):
    """Gradient of what the projection multiplied, from that of its sum; the sum's own columns first, all, then meet."""
    first_output, last_output = share(vectors_of(zeros, sizes.output), crew_member, crew)
    first, last = columns_of(zeros, first_output, last_output, sizes.output)
    total = gradients.projection
    _add_output_gradient(total, gradients.hidden, gradients.dy, first_row, last_row, first, last)
    meet(sync, crew)
    product(
        gradients.output, total, first_row, last_row, sizes.output, panels.projection, first_vector, last_vector,
        sizes.hidden, (0,), zeros, True
    )


@kernel
def _differentiate_rows(cell, gates, states, gradients, first_row, last_row, first, last):
    """`differentiate` for the rows of a step."""
    output, dgates, carry, dcells = gradients.output, gradients.gates, gradients.hidden, gradients.cells
    hidden, cells = states.hidden, states.cells
    for row in range(first_row, last_row):
        differentiate(
            cell, gates.data, offset(gates, row), dgates.data, offset(dgates, row), first, last, output.data,
            offset(output, row), cells.data, offset(cells, row), offset(states.next_cells, row), dcells.data,
            offset(dcells, row), hidden.data, offset(hidden, row), carry.data, offset(carry, row)
        )


@kernel
def backward(cell, sizes, reverse, starts, bounds, panels, zeros, gates, states, gradients, member, members, sync):
    """Gradients of all steps, last step first: the gates' gradients of every row, and those of the initial states."""
    member, members = enroll(sync, member, members)
    if member < 0:
        return
    steps = starts.size - 1
    crew_member, crew = (0, 1) if shares_rows(bounds, members) else (member, members)
    first_vector, last_vector = share(vectors_of(zeros, sizes.hidden), crew_member, crew)
    first, last = columns_of(zeros, first_vector, last_vector, sizes.hidden)
    first_output, last_output = share(vectors_of(zeros, sizes.output), crew_member, crew)
    dgates, carry = gradients.gates, gradients.hidden
    start_column, columns = recurrent_columns(cell)
    recurrent = Matrix(dgates.data, dgates.rows, dgates.start + start_column, dgates.stride)
    for index in range(steps):
        t = index if reverse else steps - 1 - index
        first_row, last_row = rows_of_step(starts, t, bounds, member, members)
        if panels.projection.size > 0:
            _project_gradient(
                sizes, panels, zeros, gradients, first_row, last_row, first_vector, last_vector, crew_member, crew, sync
            )
        else:
            _add_output_gradient(gradients.output, carry, gradients.dy, first_row, last_row, first, last)
        _differentiate_rows(cell, gates, states, gradients, first_row, last_row, first, last)
        complete_gradient(
            cell, gates, dgates, states.hidden, carry, first_row, last_row, panels.second, zeros, first_vector,
            last_vector, crew_member, crew, sync
        )
        meet(sync, crew)
        product(
            carry, recurrent, first_row, last_row, columns, panels.recurrent, first_output, last_output, sizes.output,
            (0,), zeros, not carries_state(cell)
        )
    meet(sync, members)


@kernel
def skip_gradient(cell, dx, dgates, count, units, fresh, member, members, sync):
    """dx of the rows = (0 if fresh else dx) + the sum of the gates' gradients: what x feeds without W."""
    member, members = enroll(sync, member, members)
    if member < 0:
        return
    first, last = share(count, member, members)
    for row in range(first, last):
        to, source = offset(dx, row), offset(dgates, row)
        if fresh:
            for j in range(units):
                dx.data[to + j] = 0
        for slot in input_slots(cell):
            for j in range(units):
                dx.data[to + j] += dgates.data[source + slot + j]
    meet(sync, members)
