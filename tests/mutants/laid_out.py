"""Faults in what is laid out once for calls that come again, and in how kernels are linked."""

from mutants.mutant import faults_in

PLAN, WORKSPACE = "tests/test_plan_calls.py::test_", "tests/test_workspace.py::test_"
LISTS, GRADIENTS = "tests/test_steps.py::test_", "tests/test_backward.py::test_every_combination_has_the_right_gradient"

MUTANTS = faults_in(
    "rnnkit/memory.py",
    ("what is laid out outlives its arrays", "        self._prepared.clear()  # before the array is another one\n", "",
     (f"{WORKSPACE}calls_of_many_sizes_in_one_memory[tanh]",)),
    ("what is laid out goes with a copy", '"_prepared": {}, "_asked": None, "rows": None, ', "",
     (f"{WORKSPACE}a_copy_is_no_larger_than_its_arrays",)),
    ("what is laid out for one size serves for all", "found is None or found[0] != key", "found is None",
     (f"{WORKSPACE}calls_of_many_sizes_in_one_memory[tanh]",)),
) + faults_in(
    "rnnkit/cpu/rows.py",
    ("what is laid out for a batch that comes once is kept", "self.padded or self.batch_size <= LISTED_ROWS",
     "True", (f"{WORKSPACE}a_batch_of_more_rows_than_are_listed_keeps_no_lists",)),
    ("the teams' rows are those of the first batch", "            bounds[:] = self._cut(parts)\n", "            pass\n",
     (f"{LISTS}lists_serve_batch_after_batch",)),
    ("lists are made anew for every batch", "if kept is None:", "if True:",
     (f"{PLAN}batches_of_other_lengths_are_laid_out_once",)),
    ("lists of one size serve for all", "(kept.seq_len, kept.batch_size) != size", "False",
     (f"{WORKSPACE}batches_of_other_lengths_in_one_memory[tanh-more0]",)),
    ("each part of many rows has lists of its own", "if steps not in self._long_lists:", "if True:",
     (f"{WORKSPACE}a_batch_of_more_rows_than_are_listed_keeps_no_lists",)),
) + faults_in(
    "kernels/rows.py",
    ("sequences are listed as they come", "order[starts[lengths[n]]] = n", "order[n] = n",
     (f"{LISTS}listed_rows_by_hand",)),
    ("padding is cleared up to its last row", "padded.rows.size - first, team", "padded.rows.size - first - 1, team",
     (f"{WORKSPACE}batches_of_other_lengths_in_one_memory[lstm-more0]",)),
    ("the state passes on in the place of a sequence of even length", "length % 2", "0",
     (f"{PLAN}batches_of_other_lengths_are_laid_out_once",)),
) + faults_in(
    "kernels/machine/matrix.py",
    ("every layer reads the input", "matrix.data if matrix.data.size > 0 else data, matrix.rows",
     "data, matrix.rows", (f"{PLAN}calls_of_many_sizes[tanh-more1]",)),
) + faults_in(
    "kernels/loop_gradient.py",
    ("the gradient of the cells goes to that of h", "of_call(own.cells, buffers.dcx)",
     "of_call(own.cells, buffers.dhx)", (f"{GRADIENTS}[lstm]",)),
    ("a lower layer's gradient is that of y", "of_call(own.y, buffers.dy)",
     "Matrix(buffers.dy, own.y.rows, own.y.start, own.y.stride)", (f"{GRADIENTS}[tanh]",)),
) + faults_in(
    "rnnkit/cpu/backward.py",
    ("what is laid out keeps its own memory", "        self._groups, dy = [], Grid(",
     "        self._memory = memory\n        self._groups, dy = [], Grid(",
     (f"{WORKSPACE}what_a_call_was_given_goes_with_it[None]",)),
) + faults_in(
    "rnnkit/cpu/infer.py",
    ("y is in the memory of the plan", "seq_len + 1].copy(), states", "seq_len + 1], states",
     (f"{PLAN}results_belong_to_the_caller",)),
    ("a plan keeps what is laid out for long calls", "math.prod(shape) * x.itemsize + listed <= KEPT_BYTES", "True",
     (f"{PLAN}what_is_long_is_laid_out_anew", f"{WORKSPACE}a_plan_keeps_no_sequence")),
    ("a plan keeps the row numbers of long calls", "rows, states = segment_of(steps, start, stop),",
     "rows, states = rows_of(steps, memory),",
     (f"{PLAN}a_plan_keeps_no_long_lists",)),
    ("what a plan has laid out is of any number of threads", "(planner.steps, planner.threads), make)",
     "(planner.steps,), make)", (f"{PLAN}another_number_of_threads_is_laid_out_anew",)),
    ("layers share what they put out", "_OUTPUTS = 3", "_OUTPUTS = 1", (f"{PLAN}calls_of_many_sizes[tanh-more2]",)),
    ("a plan keeps what every layer puts out", "_OUTPUTS = 3", "_OUTPUTS = 99",
     (f"{PLAN}a_deep_plan_keeps_no_more_than_a_small_one",)),
    ("a plan keeps what comes once", "if memory.comes_again(rows):", "if True:",
     (f"{PLAN}what_comes_once_is_not_kept",)),
    ("what one group puts out lives while the next one runs", "                    del ready",
     "                    pass", (f"{WORKSPACE}inference_memory_grows_with_y_alone[tanh-3]",)),
) + faults_in(
    "rnnkit/cpu/stack.py",
    ("a plan keeps room for as many rows as ever came", "room.nbytes <= KEPT_BYTES // _KEPT_ROOMS", "True",
     (f"{PLAN}a_plan_keeps_no_room_for_many_rows[None]",)),
    ("a plan keeps scratch for as many threads as there are", "nbytes += packed.scratch.nbytes", "nbytes += 0",
     (f"{PLAN}a_plan_keeps_no_room_for_many_rows[int8]",)),
    ("a plan keeps a room for each number of rows", "if len(rooms) == _KEPT_ROOMS:", "if False:",
     (f"{PLAN}a_plan_keeps_few_rooms",)),
    ("a step works where one of other rows did", "room = rooms.get(rows)", "room = next(iter(rooms.values()), None)",
     (f"{PLAN}steps_of_many_sizes[int8]",)),
    ("threads work in one place", "class _Kept(threading.local):", "class _Kept:",
     (f"{PLAN}threads_step_one_plan_at_once",)),
) + faults_in(
    "kernels/machine/linking.py",
    ("what a kernel calls may be called by others", 'function.linkage = "internal"', "pass",
     ("tests/test_linking.py::test_a_function_that_is_called_is_given_what_it_uses",)),
)  # fmt: skip
