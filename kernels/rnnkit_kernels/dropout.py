"""Dropout between layers (Srivastava et al. 2014, inverted: what is left is scaled); its own gradient."""

from .machine.jit import kernel
from .machine.matrix import Range, row_part
from .machine.partition import partition
from .machine.sync import barrier, join, post_call


@kernel
def drop(target, source, mask, scale, count, columns, thread_id, size, sync):
    """target = source * (scale where `mask`, else 0), for `count` rows of three row lists; scale is finite."""
    post_call(sync, thread_id, size)
    team = join(sync, thread_id, size)
    rows, zero, width = partition(count, team.thread_id, team.size), scale - scale, Range(0, columns)
    for row in range(rows.start, rows.stop):
        result, values, keep = row_part(target, row, width), row_part(source, row, width), row_part(mask, row, width)
        for j in range(columns):
            factor = scale if keep[j] else zero
            result[j] = values[j] * factor
    barrier(team)
