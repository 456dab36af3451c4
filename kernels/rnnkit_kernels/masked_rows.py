"""Rows of a batch with skipped steps: taken out for the engine, and put back. Each is the gradient of the other."""

from .machine.arrays import part
from .machine.jit import kernel
from .machine.matrix import add, clear, copy
from .machine.partition import partition
from .machine.sync import barrier, join, post_call


@kernel
def take_rows(target, source, initial, numbers, width, thread_id, size, sync):
    """target[i] = row numbers[i] of `source`, and of `initial` behind it; zeros if the number is negative. Arrays are
    flat, and rows have `width` elements."""
    post_call(sync, thread_id, size)
    team = join(sync, thread_id, size)
    rows = partition(numbers.size, team.thread_id, team.size)
    for row in range(rows.start, rows.stop):
        result, start = part(target, row * width, row * width + width), numbers[row] * width
        if start < 0:
            clear(result)
        elif start < source.size:
            copy(result, part(source, start, start + width))
        else:
            copy(result, part(initial, start - source.size, start - source.size + width))
    barrier(team)


@kernel
def add_rows(target, source, initial, numbers, seq_len, columns, width, thread_id, size, sync):
    """Add row i of `source` to row numbers[i] of `target`, and of `initial` behind it; none if the number is negative.

    Rows are counted (step, column): those of one column have targets that no other column has, so that threads may
    share the columns out, and the sums do not depend on their number.
    """
    post_call(sync, thread_id, size)
    team = join(sync, thread_id, size)
    own = partition(columns, team.thread_id, team.size)
    for step in range(seq_len):
        for column in range(own.start, own.stop):
            row = step * columns + column
            values, start = part(source, row * width, row * width + width), numbers[row] * width
            if start < 0:
                continue
            if start < target.size:
                add(part(target, start, start + width), values)
            else:
                add(part(initial, start - target.size, start - target.size + width), values)
    barrier(team)
