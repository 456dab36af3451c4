"""Dropout between layers (Srivastava et al. 2014, inverted: what is kept is scaled); its own gradient."""

from .machine.barrier import gather, meet, publish
from .machine.jit import kernel
from .machine.matrix import offset, part
from .machine.partition import share


@kernel
def drop(target, source, kept, scale, count, columns, member, members, sync):
    """target = source * (scale where `kept`, else 0), for `count` rows of three row lists; scale is finite."""
    publish(sync, member, members)
    members = gather(sync, member, members)
    first, last = share(count, member, members)
    zero = scale - scale
    for row in range(first, last):
        to, at, mask = offset(target, row), offset(source, row), offset(kept, row)
        result, values = part(target.data, to, to + columns), part(source.data, at, at + columns)
        keep = part(kept.data, mask, mask + columns)
        for j in range(columns):
            factor = scale if keep[j] else zero
            result[j] = values[j] * factor
    meet(sync, members)
