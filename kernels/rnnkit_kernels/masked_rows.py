"""Rows of a batch with skipped steps: lists those of the steps that run, takes them out for the engine, and puts them
back. Taking and adding are each the gradient of the other.

The steps of a sequence that run, one after the other from step 0 on, are the sequence that the engine sees. Arrays are
flat; a row is what belongs to a step and a sequence, of states to a direction, too.
"""

from .machine.arrays import part
from .machine.jit import kernel
from .machine.matrix import add, clear, copy
from .machine.partition import partition
from .machine.sync import barrier, join, post_call


@kernel
def list_masked(listed, lengths, counts, longest, directions, sources, places, states, thread_id, size, sync):
    """List the rows of a batch (T, N) and of its steps that run, (longest, N).

    Parameters
    ----------
    listed : (T*N,) bool
        Whether the step runs; not beyond the lengths.
    lengths, counts : (N,)
        Number of steps of each sequence (empty: T for all), and of those that run; `longest` is the largest count.
    directions : int
        D, of the states.
    sources : (longest*N,)
        Written: the row in the batch of each step that runs; -1 beyond them.
    places : (T*N,)
        Written: the row of each step among those that run; -1 if it is skipped.
    states : (T*N*D,)
        Written: the row of the state after each step, among those after the steps that run, (longest, N, D), or the
        initial ones behind them, (N, D); -1 beyond the length.
    """
    batch_size = counts.size
    seq_len = listed.size // batch_size if batch_size > 0 else 0
    for row in range(sources.size):
        sources[row] = -1
    for n in range(batch_size):
        done, initial, length = 0, longest * batch_size + n, lengths[n] if lengths.size > 0 else seq_len
        for t in range(seq_len):
            row, following = t * batch_size + n, done
            if listed[row]:
                sources[done * batch_size + n] = row
                places[row] = done * batch_size + n
                done += 1
            else:
                places[row] = -1
            own = row * directions
            if t >= length:
                for direction in range(directions):
                    states[own + direction] = -1
                continue
            last = (done - 1) * batch_size + n if done > 0 else initial
            states[own] = last * directions
            if directions > 1:
                last = following * batch_size + n if following < counts[n] else initial
                states[own + 1] = last * directions + 1


@kernel
def take_rows(target, source, initial, numbers, width, thread_id, size, sync):
    """target[i] = row numbers[i] of `source`, and of `initial` behind it; zeros if the number is negative."""
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
