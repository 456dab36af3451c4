"""How work is shared out among the threads of a team."""

from .arrays import part
from .jit import inner
from .matrix import Range
from .sync import CACHE_LINE, MEETING, PASSED, TAKEN, TEAMS, Team, exchange, load

_MOST_BLOCKS = 1 << 20  # of a share
# Shares that a thread looks into, its own first. Each takes two cache lines from other cores, 0.1 to 0.4 us.
_SHARES = 4


@inner
def partition(count, thread_id, size):
    """The share of a thread in `count` items."""
    if size == 1:  # without a division: those of a step took 16 ns
        return Range(0, count)
    return Range(count * thread_id // size, count * (thread_id + 1) // size)


@inner
def num_claims(count, grain, team):
    """How often each thread calls `next_block`."""
    if grain == 0:
        return 1
    return min(team.size, _SHARES) * _claims_of_share(count, grain, team)


@inner
def _claims_of_share(count, grain, team):
    largest_share = (count + team.size - 1) // team.size
    return (largest_share + grain - 1) // grain


@inner
def next_block(claim, count, grain, team):
    """The items of a thread's claim: `grain` of its own share, in later claims of the next threads'.

    Empty if somebody else has done it. A core that is slower than the others, or has other work as well, does less, and
    nobody waits for its share. With grain 0 there is one claim for the whole share, which is nobody else's. Between two
    loops over claims, and behind the last, comes a barrier.
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
    """Count up what is taken of a share to include this number, unless it does so already."""
    sync = team.sync
    none = load(sync, PASSED) * _MOST_BLOCKS  # all know the same, as long as one is at work; wraps after months
    before = load(sync, place)
    taken = before - none
    if not 0 <= taken < _MOST_BLOCKS:  # that was an earlier loop
        taken = 0
    return taken == number and exchange(sync, place, before, none + number + 1)


@inner
def split_team(tasks, split, team):
    """Share out one or two tasks: each to a team of its own, or else all to the whole team, one after the other.

    Returns the range of the tasks, and the team that they are for.
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
    """Whether the team is made of teams that each have rows of the batch: the number k those from bounds[k] on."""
    return team.size > 1 and bounds.size > 1 and team.size % (bounds.size - 1) == 0


@inner
def team_of_rows(bounds, team):
    """The number of the team that the thread belongs to, and that team: where all share the rows, the whole one."""
    if not shares_rows(bounds, team):
        return 0, team
    size = team.size // (bounds.size - 1)
    number = team.thread_id // size
    start = TAKEN + number * size * CACHE_LINE + MEETING
    return number, Team(team.thread_id % size, size, part(team.sync, start, start + PASSED + 1))
