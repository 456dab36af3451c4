"""Faults in sharing work out among many threads, and in sequences that run through all layers a step at a time."""

from mutants.mutant import faults_in

SHARING = "tests/test_sharing.py::test_"
FORWARD = ("tests/test_forward.py::test_every_combination_equals_the_reference",)
TEAMS = ("tests/test_bits.py::test_teams_with_rows_of_their_own_change_no_bit",)

MUTANTS = (
    *faults_in(
        "kernels/machine/partition.py",
        ("all teams with rows of their own meet at one barrier", "TAKEN + number * size * CACHE_LINE + MEETING",
         "TAKEN + MEETING", TEAMS),
        ("every rank of a team with rows thinks that it is the first", "    return number, Team(team.rank % size,",
         "    return number, Team(0,", TEAMS),
    ),
    *faults_in(
        "kernels/loop.py",
        ("a team works on the rows of the first", "number, _ = team_of_rows(bounds, team)",
         "number, _ = 0, team_of_rows(bounds, team)", TEAMS),
        ("more ranks come in than pay", "most, teams = min(size, schedule.threads)", "most, teams = size",
         (f"{SHARING}a_call_has_the_threads_of_its_schedule",)),
        ("a rank more than makes whole teams comes in", "most - most % teams if most >= teams else most", "most",
         (f"{SHARING}as_many_ranks_as_make_whole_teams",)),
    ),
    *faults_in(
        "kernels/machine/sync.py",
        ("helpers that nobody needs stay awake", "waited if inside % CLOSED >= load(sync, _MOST) else 0", "0",
         (f"{SHARING}a_helper_that_nobody_needs_sleeps",)),
        ("the gate lets everybody in", "inside < load(sync, _MOST)", "inside < CLOSED",
         (f"{SHARING}no_more_ranks_come_in_than_the_kernel_asks_for",)),
    ),
    *faults_in(
        "kernels/machine/team.py",
        ("all helpers are woken for any work",
         "return min(len(self.helpers), math.isqrt(work // _WAKING_WORK))", "return len(self.helpers)",
         (f"{SHARING}no_more_helpers_are_woken_than_pay",)),
    ),
    *faults_in(
        "rnnkit/cpu/planner.py",
        ("one row is shared out as two are", "_FIRST_BYTES if rows == 1 else _LIGHT_BYTES", "_LIGHT_BYTES",
         (f"{SHARING}who_shares_rows_reads_weights_that_are_near",)),
        ("one row is never shared out", "_FIRST_BYTES if rows == 1 else", "0 if rows == 1 else",
         (f"{SHARING}who_shares_rows_reads_weights_that_are_near",)),
        ("barriers take no time", "step += meetings * size * _MEETING + rows", "step += rows",
         (f"{SHARING}more_threads_than_pay_are_left_out",)),
        ("a thread more is worth any little", "_SOON = 1.05", "_SOON = 1.0",
         (f"{SHARING}a_few_threads_less_for_a_little_time",)),
    ),
    *faults_in(
        "kernels/stack.py",
        ("a sequence runs a step too far", "                    if t >= lengths[row]:\n",
         "                    if t > lengths[row]:\n", FORWARD),
        ("y beyond a length is what was computed there", "                    _clear_row(target, row)\n",
         "                    pass\n", FORWARD),
        ("cells of ended sequences go on", "                        _copy_row(states.cells_prev, states.cells, row)\n",
         "", FORWARD),
        ("a step reads the states that it writes",
         "first, before = t % 2 * layers, (t + 1) % 2 * layers if t > 0 else 0", "first, before = 0, 0", FORWARD),
    ),
)  # fmt: skip
