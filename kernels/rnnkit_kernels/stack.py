"""Steps of a whole unidirectional stack, layer by layer in each step: for streaming and short sequences."""

from .loop import next_share, num_shares, project_inputs, run_step, with_gates
from .machine.arrays import flat, part
from .machine.bound import values_of
from .machine.jit import inner, kernel
from .machine.matrix import Matrix, Range, clear, copy, row_part
from .machine.partition import partition
from .machine.sync import barrier, join, post_call
from .operands import Operands, Sizes, Step
from .phases import per_cell
from .products import sum_biases, weights_of


@kernel
def run_stack(bound, arrays, thread_id, size, sync):
    """Compute y (T*N, P), hy and cy (layers, N, ...) from x (T*N, I), hx and cx; each step runs through all layers.

    Every step computes all rows, padding included; sequences that have ended keep their states, and their y is 0. At
    most `threads` threads take part.

    `arrays` has, all of them flat:

    - x, hx, cx, y (empty if not wanted), hy and cy. With several steps hy and cy are double-buffered, (2*layers, N,
      ...): step t writes buffer t % 2.
    - The gates, scratch: N rows for each step of a chunk, whose input products the lowest layer computes at once, and N
      for the layers above; and the numbers of these rows.
    - The lengths, empty if all are T, and the marks (T*N) of states that are reset to zeros before a step, empty
      without any. Those before the first step are not read.
    - The weights if they are read in place, else an empty array.
    - The sizes T, N, I and that of a row of cy.
    """
    post_call(sync, thread_id, size)
    (cell, sizes, products, weight_starts, offsets), packed, zeros, panel_grain, threads = values_of(bound)
    team = join(sync, thread_id, size, threads)
    x, hx, cx, y, hy, cy, gates, numbers, lengths, marks, w, (num_steps, batch_size, row_size, width) = arrays
    layers = offsets.shape[0]
    columns, chunk = gates.size // max(numbers.size, 1), numbers.size // max(batch_size, 1) - 1
    own_rows = partition(batch_size, team.thread_id, team.size)
    rows = Range(0, batch_size)
    for layer in range(layers if w.size > 0 else 0):
        sum_biases(products, weight_starts[layer], packed, flat(offsets[layer]), w, team)
    if w.size > 0:
        barrier(team)
    for t in range(num_steps):
        inputs = Matrix(x, numbers, t * batch_size * row_size, row_size)
        first, before = t % 2 * layers, (t + 1) % 2 * layers if t > 0 else 0
        hidden_prev, cells_prev = hx if t == 0 else hy, cx if t == 0 else cy
        if marks.size > 0 and t > 0:  # these states are not read elsewhere: reset them in place
            for row in range(own_rows.start, own_rows.stop):
                for layer in range(layers if marks[t * batch_size + row] > 0 else 0):
                    at = (before + layer) * batch_size + row
                    clear(part(hidden_prev, at * sizes.output, (at + 1) * sizes.output))
                    clear(part(cells_prev, at * width, (at + 1) * width))
            barrier(team)
        for layer in range(layers):
            own = Sizes(sizes.hidden, sizes.output, sizes.input if layer == 0 else sizes.output)
            starts = weight_starts[layer]
            weights = weights_of(cell, own, packed, flat(offsets[layer]), products, starts, w, team.thread_id)
            at, at_prev = (first + layer) * batch_size, (before + layer) * batch_size
            outputs = Matrix(hy, numbers, at * sizes.output, sizes.output)
            place = t % chunk if layer == 0 else chunk
            pre_activations = Matrix(gates, numbers, place * batch_size * columns, columns)
            operands = Operands(
                gates=pre_activations, hidden=outputs, units=None, vectors=None, noises=None, step_noises=None,
                hidden_prev=Matrix(hidden_prev, numbers, at_prev * sizes.output, sizes.output),
                states_prev=Matrix(cells_prev, numbers, at_prev * width, width),
                states=Matrix(cy, numbers, at * width, width),
                inputs=side_inputs(cell, x, numbers, t * batch_size, row_size, sizes.hidden),
            )  # fmt: skip
            operands = with_gates(cell, own, weights, operands, operands.gates)
            if layer > 0 or t % chunk == 0:
                of_chunk = Range(0, batch_size * (min(chunk, num_steps - t) if layer == 0 else 1))
                for claim in range(num_shares(cell, zeros, sizes.hidden, panel_grain, team)):
                    vectors = next_share(cell, claim, zeros, sizes.hidden, panel_grain, team)
                    project_inputs(cell, own, weights, inputs, pre_activations, of_chunk, vectors)
                if panel_grain > 0:
                    barrier(team)
            run_step(cell, Step(own, weights, operands, None, zeros, panel_grain, t % 2 == 1, True), rows, team)
            barrier(team)
            if lengths.size > 0:
                for row in range(own_rows.start, own_rows.stop):
                    if t >= lengths[row]:
                        _copy_row(operands.hidden, operands.hidden_prev, row)
                        _copy_row(operands.states, operands.states_prev, row)
                barrier(team)
            inputs = outputs
        if y.size > 0:
            target = Matrix(y, numbers, t * batch_size * sizes.output, sizes.output)
            for row in range(own_rows.start, own_rows.stop):
                _copy_row(target, inputs, row)
                if lengths.size > 0 and t >= lengths[row]:
                    clear(row_part(target, row, Range(0, target.stride)))
    barrier(team)


@per_cell
def side_inputs(declaration):
    """Return the side inputs, the last columns of the rows of x from `row` on; None without any."""
    count = len(declaration.inputs)
    if not count:
        return lambda cell, x, numbers, row, stride, hidden_size: None
    return lambda cell, x, numbers, row, stride, hidden_size: Matrix(
        x, numbers, (row + 1) * stride - count * hidden_size, stride
    )


@inner
def _copy_row(target, source, row):
    columns = Range(0, target.stride)
    copy(row_part(target, row, columns), row_part(source, row, columns))
