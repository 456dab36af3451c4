"""Faults in what the ranks of an MPI launcher do together."""

from mutants.mutant import faults_in


def test(name, file="distributed"):
    return (f"tests/test_{file}.py::test_{name}",)


REFUSED, GPU = test("what_mpi_can_not_take_is_refused"), test("memory_of_a_gpu_needs_an_mpi_that_says_so")
UNLIKE = test("weights_of_other_sizes_or_dtypes_are_refused_by_all_ranks")
SHARDS, CORES = test("shards_follow_one_another_and_leave_nothing_out"), test("ranks_share_the_cores_that_they_may_use")
FAILING = test("an_exception_of_one_rank_ends_all_and_is_seen_once")
TRAINING = test("ranks_with_a_share_of_the_batch_train_as_one_with_all_of_it")

MUTANTS = (
    *faults_in(
        "rnnkit/distributed/launch.py",
        (
            "the outer launcher counts", "    for launcher in LAUNCHERS:", "    for launcher in LAUNCHERS[::-1]:",
            test("ranks_without_mpi4py_are_told_what_to_install", "world"),
        ),
        (
            "the only rank imports mpi4py", "(launcher is None or ranks == 1)", "launcher is None",
            test("the_only_rank_of_a_launcher_needs_no_mpi", "world"),
        ),
        (
            "ranks may be alone in their worlds", "if comm.size == 1 and ranks is not None and ranks > 1:", "if False:",
            test("the_launcher_of_another_mpi_is_noticed", "world"),
        ),
        (
            "MPICH is initialized under Open MPI's launcher", "if launcher is LAUNCHERS[0] and", "if False and",
            test("open_mpi_s_launcher_is_noticed_before_mpich_ends_the_process", "world"),
        ),
        (
            "a missing MPI library is not explained", "except (ImportError, RuntimeError)", "except ImportError",
            test("an_mpi_without_its_library_is_told_likewise", "world"),
        ),
        (
            "nothing finalizes MPI", "finalize=True", "finalize=False",
            test("what_a_rank_has_started_ends_with_it", "world"),
        ),
    ),
    *faults_in(
        "rnnkit/distributed/collectives.py",
        (
            "one call for all elements", "start : start + MAX_COUNT", "start:",
            test("more_elements_than_a_call_takes_go_in_several"),
        ),
        ("gradients are not summed", "        comm.Allreduce(MPI.IN_PLACE, block)", "        pass", TRAINING),
        ("each rank has its own weights", "        comm.Bcast(block, root)", "        pass", TRAINING),
        (
            "the weights are those of rank 0", "comm.Bcast(block, root)", "comm.Bcast(block, 0)",
            test("all_ranks_get_the_weights_of_one"),
        ),
        ("weights may differ in size", "    if len(set(kinds)) > 1:", "    if False:", UNLIKE),
        ("weights may differ in dtype", " elements of {w.dtype}", "", UNLIKE),
        ("root is not checked", "if not 0 <= root < comm.size:", "if False:", REFUSED),
        ("integers are summed", "if value.dtype not in (np.float32, np.float64):", "if False:", REFUSED),
        ("strides are not looked at", "if not value.flags.c_contiguous:", "if False:", REFUSED),
        (
            "a read-only buffer is written", "if library is np and not value.flags.writeable:", "if False:",
            test("a_buffer_is_checked_in_a_single_process_too"),
        ),
        ("any MPI gets memory of a GPU", "library is not np and not cuda_aware()", "library is not np and False", GPU),
        (
            "a gradient is sent before it is computed",
            "        library_of(array).cuda.get_current_stream().synchronize()", "        pass",
            test("memory_of_a_gpu_goes_to_an_mpi_that_takes_it_when_it_is_computed"),
        ),
        (
            "an MPI that can be asked takes memory of a GPU", "return query is not None and query() == 1",
            "return query is not None", test("the_answer_of_the_library_counts"),
        ),
    ),
    *faults_in(
        "rnnkit/distributed/ranks.py",
        (
            "the rest of the items is nobody's", "size * (rank + 1) // ranks", "size * rank // ranks + size // ranks",
            SHARDS,
        ),
        ("a rank may have no item", "    if size < ranks:", "    if False:", SHARDS),
        ("every rank takes all cores", "Fraction(1, sum(core in cores for cores in allowed))", "1", CORES),
        (
            "a core of its own is shared", "sum(core in cores for cores in allowed)", "len(allowed)",
            test("a_core_counts_for_as_many_ranks_as_may_use_it"),
        ),
        (
            "shares are floats", "Fraction(1, sum(core in cores for cores in allowed))",
            "1 / sum(core in cores for cores in allowed)", test("a_core_counts_for_as_many_ranks_as_may_use_it"),
        ),
        ("NUMBA_NUM_THREADS is overruled", ' and "NUMBA_NUM_THREADS" not in os.environ', "", CORES),
        (
            "sys.exit() of one rank ends all", "and not error.code)", "and False)",
            test("a_rank_may_exit_without_a_status"),
        ),
        (
            "a rank that fails leaves the others waiting",
            "        comm.Abort(status)\n        os._exit(status)", "        raise", FAILING,
        ),
        ("a failed rank goes on until it is ended", "        os._exit(status)", "        raise", FAILING),
        (
            "every failure has one status", "status = _exit_status(error)", "status = 1",
            test("a_rank_that_exits_ends_all_with_its_status"),
        ),
        (
            "Ctrl-C is an error", "return 130 if", "return 1 if",
            test("ctrl_c_in_a_rank_ends_all_with_the_status_that_a_shell_knows"),
        ),
        (
            "the message of sys.exit is lost", "        print(error.code, file=sys.stderr)", "        pass",
            test("a_rank_that_exits_ends_all_with_its_status"),
        ),
    ),
    *faults_in(
        "scripts/allreduce_estimate.py",
        (
            "a ring has half its messages", "messages=2 * (hosts - 1)", "messages=hosts - 1",
            ("tests/test_many_machines.py::test_the_estimate_follows_the_formulas",),
        ),
    ),
)
