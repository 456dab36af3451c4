"""Faults in what a call takes and gives back, in row numbers and parts of a call, in forks, files and descriptors."""

from mutants.mutant import Mutant

ALIASING, EXCLUSIVE, STEPS = "tests/test_aliasing.py", "tests/test_exclusive.py", "tests/test_steps.py"
TAKEN = (f"{EXCLUSIVE}::test_an_exception_right_after_what_takes_leaves_nothing_taken",)
CALLS = (f"{STEPS}::test_several_calls_of_a_kernel_give_the_bits_of_one",)
ROWS = (f"{STEPS}::test_arithmetic_rows_are_those_of_the_list",)
ENGINE, MEMORY, NUMBERS = "rnnkit/engine.py", "rnnkit/memory.py", "rnnkit/cpu/rows.py"
FORKS, TEAM, CACHE = "tests/test_fork_locks.py", "kernels/machine/team.py", "kernels/machine/cache.py"

MUTANTS = (
    Mutant(
        "hx may view the workspace", ENGINE, "_check_reuse(workspace, w=w, x=x, hx=hx, cx=cx)",
        "_check_reuse(workspace, w=w, x=x, cx=cx)",
        (f"{ALIASING}::test_forward_refuses_an_input_that_views_its_workspace",)
    ),
    Mutant(
        "dw may lie over what forward read", ENGINE, "dcy=dcy, **workspace.inputs)", "dcy=dcy)",
        (f"{ALIASING}::test_backward_refuses_a_gradient_over_an_input",)
    ),
    Mutant(
        "dw may lie in the workspace", ENGINE, "if dw is not None and workspace.memory.holds(dw):", "if False:",
        (f"{ALIASING}::test_backward_refuses_a_gradient_in_the_workspace",)
    ),
    Mutant(
        "every subclass is an array", "rnnkit/arrays.py", "if type(value) is np.ndarray or type(value) is np.memmap:",
        "if isinstance(value, np.ndarray):", ("tests/test_subclasses.py::test_a_subclass_is_refused",)
    ),
    Mutant(
        "a forward enters a workspace in use", MEMORY, "if at_work(self.calls):", "if False:",
        (f"{EXCLUSIVE}::test_forward_refuses_a_workspace_while_a_call_is_at_work_in_it",)
    ),
    Mutant(
        "two calls work in one memory", MEMORY, "if at_work(self.borrowers):", "if False:",
        ("tests/test_bits.py::test_threads_may_share_a_workspace_and_a_plan",)
    ),
    Mutant(
        "a forked child has its parent's calls at work", "rnnkit/forking.py", "    _forkers.append(get_ident())\n", "",
        (f"{FORKS}::test_a_child_is_not_refused_for_calls_of_its_parents_threads",)
    ),
    Mutant(
        "the call that forked is not at work in the child", "rnnkit/forking.py", "forker != one[1] for forker",
        "True for _",
        (f"{FORKS}::test_a_child_is_not_refused_for_calls_of_its_parents_threads",)
    ),
    Mutant(
        "a forward takes before it tries", ENGINE, "    try:\n        memory.renew(call)\n",
        "    memory.renew(call)\n    try:\n", TAKEN
    ),
    Mutant(
        "a call takes the team before it tries", TEAM, "    try:\n        team = _enter(call)\n",
        "    team = _enter(call)\n    try:\n", TAKEN
    ),
    Mutant(
        "a long call is one call of a kernel", "rnnkit/cpu/planner.py", "        if total <= count:\n",
        "        if True:\n", (f"{EXCLUSIVE}::test_an_interrupt_is_looked_at_between_the_parts_of_a_long_call",)
    ),
    Mutant(
        "the rows of a part are not moved", NUMBERS, "moved, odd, count = start * size,", "moved, odd, count = 0,", ROWS
    ),
    Mutant("odd parts begin as even ones", NUMBERS, "start % 2 * size, rows.size", "0, rows.size", ROWS),
    Mutant(
        "row numbers of all sizes are kept", NUMBERS, "if steps * self.batch_size <= LISTED_ROWS:", "if True:",
        (f"{STEPS}::test_row_numbers_do_not_outlive_the_results",)
    ),
    Mutant(
        "the gates of a part begin at its first step", "rnnkit/cpu/run.py",
        "0 if len(self.gates) == steps.seq_len else", "0 if True else", CALLS
    ),
    Mutant(
        "layers one after another share packed weights", "rnnkit/cpu/backward.py",
        "number if schedule.split or len(spans) > 1 else 0", "number if schedule.split else 0", CALLS
    ),
    Mutant(
        "weights are packed in no call but all", "rnnkit/cpu/backward.py",
        "self._packs and not calls", "self._packs and bool(calls)",
        ("tests/test_golden.py",)
    ),
    Mutant(
        "a fork waits for no import", "rnnkit/forking.py", "    importing.acquire()\n", "    return\n",
        ("tests/test_fork_locks.py::test_a_child_forked_under_way_works[importing]",)
    ),
    Mutant(
        "a fork waits for no compiler", "rnnkit/forking.py", "if compiling is not None:", "if False:",
        ("tests/test_fork_locks.py::test_a_child_forked_under_way_works[compiling]",)
    ),
    Mutant(
        "a fork waits for nobody who takes", "rnnkit/forking.py", "    entering.acquire()\n", "    return\n",
        ("tests/test_fork_locks.py::test_a_child_forked_under_way_works[taking]",)
    ),
    Mutant(
        "the initial weights know of the projection", "rnnkit/weights.py", "1.0 / sqrt(desc.hidden_size)",
        "1.0 / sqrt(desc.output_size)", ("tests/test_weights.py",)
    ),
    Mutant(
        "half precision allows TensorFloat-32", "rnnkit/descriptor.py",
        'if desc.allow_tf32 and desc.dtype != "float32":', 'if desc.allow_tf32 and desc.dtype == "float64":',
        ("tests/test_descriptor.py",)
    ),
    Mutant(
        "a file's sizes are believed", "rnnkit/archive.py", "if entry.file_size > self._size:", "if False:",
        ("tests/test_archive.py",)
    ),
    Mutant(
        "a device is replaced", "rnnkit/archive.py", "if not stat.S_ISREG(found.st_mode):", "if False:",
        ("tests/test_archive.py",)
    ),
    Mutant(
        "another user's kernels run", CACHE, "if found.st_uid != os.geteuid():", "if False:",
        ("tests/test_cache.py",)
    ),
    Mutant(
        "a damaged kernel is loaded", CACHE, "return data if digest == _digest(name, data) else None", "return data",
        ("tests/test_cache.py",)
    ),
)
