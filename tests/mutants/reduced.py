"""Faults in plans with weights of fewer bits."""

from mutants.mutant import faults_in

TESTS = "tests/test_reduced_weights.py::test_"
OPTIONS, LONG = (f"{TESTS}the_options_of_a_network",), (f"{TESTS}long_sums",)
STATES, SIZES = (f"{TESTS}what_is_not_finite_stays_so_in_its_row",), (f"{TESTS}rows_of_any_size",)

MUTANTS = (
    *faults_in(
        "kernels/machine/rounding.py",
        ("the last bytes of a row are those of the first word",
         "k = 4 * whole\n", "k = 0\n", OPTIONS),
        ("rows behind the first block are converted anew from the first", "row_part(a, row, Range(0, depth))",
         "row_part(a, row - rows.start, Range(0, depth))", (f"{TESTS}more_rows_than_are_converted_at_once",)),
        ("a row with an infinite number is one of numbers", "else source.dtype.type(np.nan)",
         "else source.dtype.type(1)", STATES),
        ("tiny rows are not zeros", "    if value < source.dtype.type(LEAST):", "    if value < 0:", SIZES),
    ),
    *faults_in(
        "kernels/machine/formats.py",
        ("ranks share their scratch", "scratch = part(packed.scratch, rank * packed.room, (rank + 1) * packed.room)\n"
         "        return Bfloat16", "scratch = part(packed.scratch, 0, packed.room)\n        return Bfloat16",
         (f"{TESTS}each_rank_has_scratch_of_its_own",)),
    ),
    *faults_in(
        "rnnkit/cpu/reduced.py",
        ("weights are cut off, not rounded", "bits + (0x7FFF + ((bits >> 16) & 1))", "bits + (0 * bits)", OPTIONS),
        ("the scales of a column are another one's", "target[gates] = values", "target[gates][...] = values[..., ::-1]",
         OPTIONS),
        ("a NaN among the weights is a number", "np.where(np.isfinite(largest), largest / one, np.float32(np.nan))",
         "np.where(np.isfinite(largest), largest / one, np.float32(1))", STATES),
    ),
    *faults_in(
        "rnnkit/cpu/stack.py",
        ("scratch is that of fewer threads", "packed = self.with_scratch(rows, threads, take)",
         "packed = self.with_scratch(rows, 1, take)", (f"{TESTS}a_stream_goes_on_on_more_threads",)),
    ),
    *faults_in(
        "rnnkit/plan.py",
        ("a pickled plan forgets its weights' form", "again = partial(prepare, weights=self.weights)",
         "again = partial(prepare, weights=None)", (f"{TESTS}plans_are_copied_as_what_they_are",)),
        ("weights of fewer bits are taken by a float64 network", '        if desc.dtype != "float32":',
         "        if False:", (f"{TESTS}refusals",)),
    ),
)  # fmt: skip
