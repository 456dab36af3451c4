"""Sequences of different lengths: which rows have a step is listed, and what lies beyond the lengths is cleared."""

from .machine.bound import values_of
from .machine.jit import kernel
from .machine.matrix import Range, clear, row_part
from .machine.partition import partition
from .machine.sync import barrier, join, post_call


@kernel
def list_rows(bound, given, thread_id, size, sync):
    """List the valid steps (t, n) of a batch of these lengths, step by step, the longest sequences first.

    Parameters
    ----------
    bound
        The next three, and whether the order is given (`ordered`).
    starts : (T + 1,)
        Written: step t has the positions starts[t]:starts[t + 1].
    lists : (5, T*N), with resets (8, T*N)
        Written at each position: the row t*N + n; n; where the state before the step stands on the reverse way, in an
        array with an initial state in front and one behind; and before and after the step in one of two places. Behind
        the last valid one the first list has the rows of the padding. The last three are of resets: where the state
        before the step stands on the way forward; and whether the next step starts anew, forward and on the reverse
        way. States that start anew begin with those that stand at T + 2.
    sequences : (5, N)
        Written for each sequence: its length; the sequences, the longest first (read where `ordered`); the row of its
        final state in an array with initial states, forward and on the reverse way; and in one of two places, forward.
    given : tuple
        Of each call: lengths (N,), and the marks of resets, (2*(T + 1)*N,), none without any.
    thread_id, size, sync
        Not read: the work is too little to share.
    """
    (starts, lists, sequences, ordered), (lengths, marks) = values_of(bound), given
    seq_len, batch_size = starts.size - 1, lengths.size
    order, reverse = sequences[1], (seq_len + 1) * batch_size  # where the marks of the reverse way begin
    clear(starts)
    for n in range(batch_size):
        length = lengths[n]
        starts[length] += 1
        sequences[0, n], sequences[2, n] = length, length * batch_size + n
        sequences[3, n] = (1 if length > 0 else seq_len + 1) * batch_size + n
        sequences[4, n] = length % 2 * batch_size + n
    longer = 0
    for length in range(seq_len, -1, -1):
        starts[length], longer = longer, longer + starts[length]
    for n in range(batch_size):
        if not ordered:
            order[starts[lengths[n]]] = n
        starts[lengths[n]] += 1
    count = starts[0] = 0  # and starts[t + 1] is the number of sequences that are longer than t
    for t in range(seq_len):
        here = t % 2 * batch_size
        for position in range(starts[t + 1]):
            n = order[position]
            lists[0, count], lists[1, count] = t * batch_size + n, n
            lists[2, count] = (t + 2 if t + 1 < lengths[n] else seq_len + 1) * batch_size + n
            lists[3, count], lists[4, count] = here + n, batch_size - here + n
            if marks.size > 0:
                mark, anew = t * batch_size + n, (seq_len + 2) * batch_size + n
                lists[5, count] = anew if marks[mark] > 0 else mark
                if marks[reverse + mark + batch_size] > 0:
                    lists[2, count] = anew
                lists[6, count], lists[7, count] = marks[mark + batch_size], marks[reverse + mark]
            count += 1
        starts[t + 1] = count
    for t in range(seq_len):
        for position in range(starts[t + 1] - starts[t], batch_size):
            lists[0, count] = t * batch_size + order[position]
            count += 1


@kernel
def clear_padding(bound, starts, thread_id, size, sync):
    """padded = 0 in the rows that are listed behind those of all steps; step t has starts[t]:starts[t + 1]."""
    post_call(sync, thread_id, size)
    (padded,) = values_of(bound)
    team = join(sync, thread_id, size)
    first, columns = starts[starts.size - 1], Range(0, padded.stride)
    rows = partition(padded.rows.size - first, team.thread_id, team.size)
    for row in range(first + rows.start, first + rows.stop):
        clear(row_part(padded, row, columns))
    barrier(team)
