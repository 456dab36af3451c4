"""Packed rows of sequences of different lengths: lists the valid steps, and clears what does not belong to any."""

from .machine.arrays import part
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
    bound : (starts, lists, sequences, ordered)
        The next three, and whether the order of the sequences is given.
    starts : (T + 1,)
        Written: step t has the positions starts[t]:starts[t + 1].
    lists : (5, T*N), with resets (8, T*N)
        Written at each position. Rows of states count in an array (T + 2, N) with the initial states of both directions
        first and last, or, double-buffered, in one (2, N). With resets the reset states follow in the first.

        0. The row t*N + n; after the valid ones, the rows of the padding.
        1. n.
        2. The state before the step, in the reverse direction.
        3. The state before the step, double-buffered, forward; in the reverse direction the state after it.
        4. The state after the step, double-buffered, forward; in the reverse direction the state before it.
        5. With resets: the state before the step, forward.
        6. With resets: whether the next step starts from a reset state, forward.
        7. With resets: the same in the reverse direction.
    sequences : (5, N)
        Written for each sequence: its length; the sequences, the longest first (read if `ordered`); the row of its
        final state, forward and in the reverse direction; and that of the final state double-buffered, forward.
    given : tuple
        Of each call: lengths (N,), and the marks of resets, (2*(T + 1)*N,), empty without resets.
    thread_id, size, sync
        Not read: too little work to split.
    """
    (starts, lists, sequences, ordered), (lengths, marks) = values_of(bound), given
    seq_len, batch_size = starts.size - 1, lengths.size
    order, reverse = sequences[1], (seq_len + 1) * batch_size  # the initial states and the marks of that direction
    clear(starts)
    for n in range(batch_size):
        length = lengths[n]
        starts[length] += 1
        sequences[0, n], sequences[2, n] = length, length * batch_size + n
        sequences[3, n] = (1 if length > 0 else seq_len + 1) * batch_size + n
        sequences[4, n], sequences[5, n] = length % 2 * batch_size + n, reverse + n
    longer = 0
    for length in range(seq_len, -1, -1):
        starts[length], longer = longer, longer + starts[length]
    for n in range(batch_size):
        if not ordered:
            order[starts[lengths[n]]] = n
        starts[lengths[n]] += 1
    count = starts[0] = 0  # now starts[t + 1] is the number of sequences longer than t
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
def cut_rows(bound, given, thread_id, size, sync):
    """Write the row boundaries in every step, (parts + 1,), that balance the work of the parts: each has sequences of
    as many steps together. `bound` has them and the lengths; nothing is `given`."""
    bounds, sequences = values_of(bound)
    lengths, order, parts = sequences[0], sequences[1], bounds.size - 1
    total = done = n = 0
    for row in range(lengths.size):
        total += lengths[row]
    for number in range(parts + 1):
        while done * parts < number * total:
            done, n = done + lengths[order[n]], n + 1
        bounds[number] = n


@kernel
def mark_resets(bound, given, thread_id, size, sync):
    """Write the marks of resets, (2*(T + 1)*N,), as `call.steps.Resets` has them. `given` is where the sequences reset,
    (T*N,), and their lengths (N,)."""
    (marks,), (resets, lengths) = values_of(bound), given
    batch_size = lengths.size
    reverse = marks.size // 2
    clear(marks)
    for n in range(batch_size):
        for t in range(lengths[n]):
            mark = resets[t * batch_size + n]
            marks[t * batch_size + n] = mark
            if t > 0:
                marks[reverse + t * batch_size + n] = mark


@kernel
def clear_reset_states(bound, states, thread_id, size, sync):
    """Zero the gradients (L*D, N, ...) of forward initial states that were never read, as the sequence resets before
    step 0. `bound` has the marks of resets, N, L*D and D."""
    marks, batch_size, layers, directions = values_of(bound)
    width = states.size // (layers * batch_size)
    for n in range(batch_size):
        for layer in range(0, layers if marks[n] > 0 else 0, directions):
            row = (layer * batch_size + n) * width
            clear(part(states, row, row + width))


@kernel
def clear_padding(bound, given, thread_id, size, sync):
    """Zero the padding rows, which are listed after those of all steps: step t has the positions
    starts[t]:starts[t + 1]. Nothing is `given`."""
    post_call(sync, thread_id, size)
    padded, starts, batch_size = values_of(bound)
    team = join(sync, thread_id, size)
    first, columns = starts[starts.size - 1], Range(0, padded.stride)
    rows = partition((starts.size - 1) * batch_size - first, team.thread_id, team.size)
    for row in range(first + rows.start, first + rows.stop):
        clear(row_part(padded, row, columns))
    barrier(team)
