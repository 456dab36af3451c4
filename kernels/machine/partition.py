"""How work is shared out among the members of a crew."""

from .barrier import ARRIVED, BASE, CREWS, LINE, TAKEN, exchange, load
from .jit import inner
from .matrix import part

_MOST_PIECES = 1 << 20  # of a share


@inner
def share(count, member, members):
    """[first, last) of a member's part of `count` pieces."""
    return count * member // members, count * (member + 1) // members


@inner
def turns(count, size, members):
    """How often each member calls `claim`."""
    if size == 0:
        return 1
    largest_share = (count + members - 1) // members
    return members * ((largest_share + size - 1) // size)


@inner
def claim(turn, count, size, member, members, sync):
    """[first, last) of what a member does in this turn: `size` pieces of its share, in later turns of the others'.

    Empty if somebody else has done it. A core that is slower than the others, or has other work as well, does less, and
    nobody waits for its share. With size 0 there is one turn for the whole share, which is nobody else's. Between two
    loops over turns, and behind the last, the crew has to meet.
    """
    if size == 0:
        return share(count, member, members)
    turns_of_share = turns(count, size, members) // members
    owner, number = (member + turn // turns_of_share) % members, turn % turns_of_share
    begin, end = share(count, owner, members)
    first = begin + number * size
    if first >= end or members > 1 and not _is_mine(sync, TAKEN + owner * LINE, number, members):
        return begin, begin
    return first, min(first + size, end)


@inner
def _is_mine(sync, place, number, members):
    """Count up what is taken of a share to include this number, unless it does so already."""
    base = load(sync, BASE)
    meetings = (load(sync, ARRIVED) - base) // members  # in this call; all know the same, as long as one is at work
    none = (base + meetings * members) * _MOST_PIECES  # wraps after months
    before = load(sync, place)
    taken = before - none
    if not 0 <= taken < _MOST_PIECES:  # that was an earlier loop
        taken = 0
    return taken == number and exchange(sync, place, before, none + number + 1)


@inner
def divide(tasks, apart, member, members, sync):
    """Share out one or two tasks: if `apart`, to a crew each, or else all to the whole crew, one after the other.

    Returns [first, last) of the tasks, and in their crew the member's number, the size, and what to meet at. The whole
    crew meets once more after that: `gather` begins the barriers of all crews anew.
    """
    if not apart or members % tasks > 0:
        return 0, tasks, member, members, sync
    crew = members // tasks
    task = member // crew
    places = sync.size // CREWS
    begin = places * (task + 1) if tasks > 1 else 0
    return task, task + 1, member % crew, crew, part(sync, begin, begin + places)
