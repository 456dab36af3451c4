"""Splits work among the threads of a team: static shares, work stealing, and teams of their own."""

from .arrays import part
from .jit import inner
from .matrix import Range
from .sync import BARRIER, CACHE_LINE, PASSED, TAKEN, TEAMS, Team, exchange, load

_MAX_BLOCKS = 1 << 20  # of a thread's share
# Shares that a thread takes blocks of, its own first. Each costs two cache lines of other cores, 0.1 to 0.4 us.
_SHARES = 4


@inner
def partition(count, thread_id, size):
    """Return the share of a thread in `count` items."""
    if size == 1:  # no divisions: those of a step took 16 ns
        return Range(0, count)
    return Range(count * thread_id // size, count * (thread_id + 1) // size)


@inner
def num_claims(count, grain, team):
    """Return how often each thread calls `next_block`."""
    if grain == 0:
        return 1
    return min(team.size, _SHARES) * _claims_of_share(count, grain, team)


@inner
def _claims_of_share(count, grain, team):
    largest_share = (count + team.size - 1) // team.size
    return (largest_share + grain - 1) // grain


@inner
def next_block(claim, count, grain, team):
    """Return the block of a thread's claim (work stealing): `grain` items of its own share, later of other threads'.

    The block is empty if another thread has taken it. A core that is slower, or has other work too, takes fewer blocks,
    and nobody waits for its share. With grain 0 there is one claim, for the thread's whole share. A barrier must follow
    each loop over claims.
    """
    if grain == 0:
        return partition(count, team.thread_id, team.size)
    claims_of_share = _claims_of_share(count, grain, team)
    owner, number = (team.thread_id + claim // claims_of_share) % team.size, claim % claims_of_share
    share = partition(count, owner, team.size)
    start = share.start + number * grain
    if start >= share.stop or team.size > 1 and not _is_mine(team, TAKEN + owner * CACHE_LINE, number):
        return Range(share.start, share.start)
    return Range(start, min(start + grain, share.stop))


@inner
def _is_mine(team, place, number):
    """Try to take block `number` of a share; returns False if another thread has taken it."""
    sync = team.sync
    none = load(sync, PASSED) * _MAX_BLOCKS  # PASSED is constant during a loop; wraps after months
    before = load(sync, place)
    taken = before - none
    if not 0 <= taken < _MAX_BLOCKS:  # the count of an earlier loop
        taken = 0
    return taken == number and exchange(sync, place, before, none + number + 1)


@inner
def split_team(tasks, split, team):
    """Assign one or two tasks: each to a team of its own, or all of them, in order, to the whole team.

    Returns the range of tasks of this thread's team, and the team.
    """
    if not split or team.size % tasks > 0:
        return Range(0, tasks), team
    size = team.size // tasks
    task = team.thread_id // size
    length = team.sync.size // TEAMS
    start = length * (task + 1) if tasks > 1 else 0
    return Range(task, task + 1), Team(team.thread_id % size, size, part(team.sync, start, start + length))


@inner
def shares_rows(bounds, team):
    """Return whether the team consists of teams with their own rows of the batch: team k from bounds[k] on."""
    return team.size > 1 and bounds.size > 1 and team.size % (bounds.size - 1) == 0


@inner
def team_of_rows(bounds, team):
    """Return the number of the thread's team, and the team: the whole one unless teams have their own rows."""
    if not shares_rows(bounds, team):
        return 0, team
    size = team.size // (bounds.size - 1)
    number = team.thread_id // size
    start = TAKEN + number * size * CACHE_LINE + BARRIER
    return number, Team(team.thread_id % size, size, part(team.sync, start, start + PASSED + 1))
